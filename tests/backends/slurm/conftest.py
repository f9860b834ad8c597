"""One cluster for all tests of the backend over Slurm; each leaves it empty."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.backends.slurm.cluster import CannotRun, SlurmCluster, until


@pytest.fixture(scope="session")
def only_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """Three nodes; skips, with the reason, where Slurm is not installed."""
    cluster = SlurmCluster(tmp_path_factory.mktemp("slurm"))
    try:
        cluster.start()
    except CannotRun as why:
        pytest.skip(str(why))
    except BaseException:
        cluster.close()
        raise
    yield cluster
    assert cluster.close() == []


@pytest.fixture
def cluster(only_cluster: SlurmCluster) -> Iterator[SlurmCluster]:
    """The cluster, without jobs before and after."""
    yield only_cluster
    for job in only_cluster.jobs():
        only_cluster.run("scancel", "--signal=KILL", "--full", job.split()[0])
    until(lambda: not only_cluster.jobs(), lambda: f"jobs are left: {only_cluster.jobs()}")
    for node in only_cluster.gpus:
        until(lambda node=node: not only_cluster.below(node), lambda: "processes are left")  # type: ignore[misc]


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A directory that all nodes see."""
    return tmp_path / "shared"
