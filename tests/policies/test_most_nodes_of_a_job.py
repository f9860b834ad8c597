"""Jobs that need, or ask for, all that one job may have."""

from dataclasses import replace

import pytest

from stretto.model import Adaptivity, GpuType, cluster_of
from stretto.policies.registry import load_policy, policy_names
from stretto.sim.run import Setup, simulate
from stretto.sim.settings import SimSettings
from stretto.testing.builders import a_job
from stretto.traces.workload import Truth, Workload

TWO_NODES = replace(GpuType("t4"), max_nodes_per_job=2)


@pytest.mark.parametrize("name", policy_names())
@pytest.mark.parametrize(("node_gpus", "gpus"), [(3, 6), (6, 12), (6, 11), (10, 20), (8, 16)])
def test_it_runs_on_two_whole_nodes(name: str, node_gpus: int, gpus: int) -> None:
    cluster = cluster_of("few nodes for one", (TWO_NODES, 4, node_gpus))
    workload = Workload("one", [a_job("large", gpus=gpus)], [Truth(duration_s=500.0)])
    result = simulate(workload, Setup(cluster, load_policy(name), SimSettings()))
    assert result.done.all()


@pytest.mark.parametrize("policy", ["stretto", "sia"])
@pytest.mark.parametrize("model", ["", "resnet18-cifar10"])
def test_an_elastic_job_that_may_not_be_stopped_starts_though_it_asks_for_more_than_there_is(
    policy: str, model: str
) -> None:
    job = a_job(
        "large",
        gpus=16,
        max_gpus=128,
        model=model,
        preemptible=False,
        adaptivity=Adaptivity.STRONG_SCALING,
    )
    workload = Workload("one", [job], [Truth() if model else Truth(duration_s=100.0)])
    cluster = cluster_of("twelve", (GpuType("t4"), 4, 3))
    assert simulate(workload, Setup(cluster, load_policy(policy), SimSettings())).done.all()
