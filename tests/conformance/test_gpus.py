"""Who has which GPUs, by what the processes themselves find, over every backend."""

import pytest

from stretto.testing.backends.gpus import Gpus

pytestmark = [pytest.mark.processes, pytest.mark.large]


class TestGpus(Gpus):
    """Over every cluster of `worlds`."""
