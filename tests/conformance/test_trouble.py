"""Nodes that die and return, clusters that do not answer, answers that get lost, over every backend."""

import pytest

from stretto.testing.backends.trouble import Trouble

pytestmark = [pytest.mark.processes, pytest.mark.large]


class TestTrouble(Trouble):
    """Over every cluster of `worlds`."""
