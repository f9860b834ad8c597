"""Jobs of a service from their submission to their end, over every backend."""

import pytest

from stretto.testing.services.jobs import Jobs

pytestmark = [pytest.mark.processes, pytest.mark.large]


class TestJobs(Jobs):
    """Over every cluster of `worlds`."""
