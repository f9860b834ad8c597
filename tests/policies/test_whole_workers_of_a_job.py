"""Workers of several GPUs, each on one node: a job that fits an empty cluster starts under every policy."""

from typing import Any

import pytest

from stretto.model import Adaptivity, Cluster, Constraints, GpuType, Job, cluster_of
from stretto.policies.registry import load_policy, policy_names
from stretto.sim.run import Setup, simulate
from stretto.sim.settings import SimSettings
from stretto.testing.builders import a_job
from stretto.traces.workload import Truth, Workload

WHOLE = Constraints(whole_workers=True)
A100 = GpuType("a100")
MIXED = cluster_of("two types", (A100, 2, 4), (GpuType("rtx"), 2, 8))


def rigid(name: str, gpus: int, each: int = 1, **more: Any) -> Job:
    return a_job(name, gpus, gpus_per_worker=each, adaptivity=Adaptivity.RIGID, **more)


def elastic(name: str, least: int, most: int, each: int = 1, **more: Any) -> Job:
    sizes = {"min_gpus": least, "max_gpus": most, "gpus_per_worker": each}
    return a_job(name, least, adaptivity=Adaptivity.STRONG_SCALING, **sizes, **more)


def all_end(policy: str, cluster: Cluster, *jobs: Job) -> bool:
    workload = Workload("some", list(jobs), [Truth(duration_s=500.0) for _ in jobs])
    setup = Setup(cluster, load_policy(policy), SimSettings(), constraints=WHOLE)
    return bool(simulate(workload, setup).done.all())


@pytest.mark.parametrize("name", policy_names())
@pytest.mark.parametrize(
    ("nodes", "node_gpus", "each", "gpus"),
    [
        (2, 3, 2, 4),
        (3, 3, 2, 6),
        (2, 4, 3, 6),
        (4, 4, 3, 9),
        (2, 5, 2, 8),
        (2, 5, 5, 10),
        (2, 8, 3, 12),
        (2, 8, 5, 10),
        (2, 8, 6, 12),
        (2, 12, 5, 20),
        (2, 12, 6, 24),
    ],
)
def test_a_job_that_fits_in_whole_workers_runs(
    name: str, nodes: int, node_gpus: int, each: int, gpus: int
) -> None:
    cluster = cluster_of("of one type", (A100, nodes, node_gpus))
    assert all_end(name, cluster, rigid("large", gpus, each))


@pytest.mark.parametrize("name", policy_names())
@pytest.mark.parametrize(
    ("cluster", "jobs"),
    [
        pytest.param(
            cluster_of("", (A100, 2, 4)), (rigid("a", 6, 3), elastic("b", 3, 6, 3)), id="rigid and elastic"
        ),
        pytest.param(
            cluster_of("", (A100, 2, 4)),
            (rigid("a", 6, 3), rigid("b", 2), elastic("c", 1, 8)),
            id="among workers of one GPU",
        ),
        pytest.param(
            cluster_of("", (A100, 3, 4)), (elastic("a", 3, 12, 3),), id="more than there is room for"
        ),
        pytest.param(
            MIXED,
            (
                a_job(
                    "a",
                    6,
                    min_gpus=3,
                    max_gpus=12,
                    gpus_per_worker=3,
                    replica_gpus={"a100": 3, "rtx": 6},
                    adaptivity=Adaptivity.STRONG_SCALING,
                ),
                rigid("b", 6, 3, gpu_types=("a100",)),
            ),
            id="of another size by type",
        ),
    ],
)
def test_jobs_beside_each_other_run(name: str, cluster: Cluster, jobs: tuple[Job, ...]) -> None:
    assert all_end(name, cluster, *jobs)
