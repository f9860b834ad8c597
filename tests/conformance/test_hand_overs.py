"""Nodes that go to a lender and come back, over every backend."""

import pytest

from stretto.testing.backends.hand_overs import HandOvers

pytestmark = [pytest.mark.processes, pytest.mark.large]


class TestHandOvers(HandOvers):
    """Over every cluster of `worlds`."""
