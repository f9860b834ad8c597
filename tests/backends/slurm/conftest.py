"""One cluster for all tests of the backend over Slurm; each leaves it empty."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.agent.containers import an_image, real_apptainer, stand_in
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


@pytest.fixture(params=["stand-in", "apptainer"])
def by_apptainer(request: pytest.FixtureRequest, tmp_path: Path) -> Mapping[str, Any]:
    """The options of a cluster whose nodes have apptainer, and an image for it."""
    if request.param == "stand-in":
        return {"container_program": str(stand_in(tmp_path / "bin")), "image": "/images/plain.sif"}
    real = real_apptainer()
    if real is None:
        pytest.skip("this machine has no apptainer in PATH")
    return {"container_program": real, "image": str(an_image(tmp_path / "image"))}
