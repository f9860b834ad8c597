"""Jobs of a service that grow, shrink, move, and lose nodes, over every backend."""

import pytest

from stretto.testing.services.resizing import Resizing

pytestmark = [pytest.mark.processes, pytest.mark.large]


class TestResizing(Resizing):
    """Over every cluster of `worlds`."""
