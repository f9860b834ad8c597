"""For authors of backends: the promises that every backend keeps, as tests over a cluster of yours.

A test module beside your backend names the suite, and a fixture gives the cluster:

    pytest_plugins = ["stretto.testing.backends.plugin"]

    import pytest

    from stretto.testing.backends import BackendConformance

    @pytest.fixture(scope="session")
    def cluster(tmp_path_factory):
        return ToyWorld(tmp_path_factory.mktemp("toy"))

    class TestToy(BackendConformance):
        pass

`World` says what the cluster must be able to do. The plugin closes it after the last test. What it lacks is
skipped, with its reason. Workers find `STRETTO_WORKER_ID` and `CUDA_VISIBLE_DEVICES` in their environment,
which the backend sets. `stretto.testing.services` has the promises of a whole service over it.
"""

from stretto.testing.backends.exec_sessions import ExecSessions
from stretto.testing.backends.gpus import Gpus
from stretto.testing.backends.hand_overs import HandOvers
from stretto.testing.backends.lives import Lives
from stretto.testing.backends.stage import Stage
from stretto.testing.backends.stops import Stops
from stretto.testing.backends.trouble import Trouble
from stretto.testing.backends.world import CannotRun, CountsProcesses, World, pid_of

__all__ = [
    "BackendConformance",
    "CannotRun",
    "CountsProcesses",
    "ExecSessions",
    "Gpus",
    "HandOvers",
    "Lives",
    "Stage",
    "Stops",
    "Trouble",
    "World",
    "pid_of",
]


class BackendConformance(Lives, Gpus, Stops, Trouble, HandOvers, ExecSessions):
    """Every promise of `stretto.backends.protocol.Backend`, and of what it may have beside."""
