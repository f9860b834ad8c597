"""Workers that are asked to end, or made to, over every backend."""

import pytest

from stretto.testing.backends.stops import Stops

pytestmark = [pytest.mark.processes, pytest.mark.large]


class TestStops(Stops):
    """Over every cluster of `worlds`."""
