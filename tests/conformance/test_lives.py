"""A worker from its start to its end, over every backend."""

import pytest

from stretto.testing.backends.lives import Lives

pytestmark = [pytest.mark.processes, pytest.mark.large]


class TestLives(Lives):
    """Over every cluster of `worlds`."""
