"""A job that fits on as many nodes as one job may use gets them, also where cells would lie on more."""

from dataclasses import replace

import pytest

from stretto.model import GpuType, cluster_of
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
