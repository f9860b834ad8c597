"""What a job loses whose nodes are far from each other, where the settings say so."""

from dataclasses import replace

import pytest

from stretto.model import Adaptivity, Cluster, GpuType, Node, NodeId
from stretto.policies import load_policy
from stretto.sim.run import Setup, simulate
from stretto.sim.settings import SimSettings
from stretto.testing.builders import a_job
from stretto.traces.workload import Truth, Workload

NODES = tuple(Node(NodeId(f"n{at}"), "t4", 4, domains=(f"leaf{at // 2}", f"rack{at}")) for at in range(4))
CLUSTER = Cluster("net", (GpuType("t4"),), NODES, ("leaf", "rack"))


@pytest.mark.parametrize(
    ("gpus", "loss", "crossed"),
    [(4, 0.2, 0), (8, 0.2, 1), (12, 0.2, 2), (12, 0.0, 0)],
)
def test_a_job_lacks_a_part_of_its_speed_for_each_level_that_it_crosses(
    gpus: int, loss: float, crossed: int
) -> None:
    workload = Workload("one", (a_job("a", gpus=gpus, adaptivity=Adaptivity.RIGID),), (Truth(100.0),))
    setup = Setup(cluster=CLUSTER, policy=load_policy("fifo"), sim=SimSettings(crossing_loss=loss))
    result = simulate(workload, setup)
    assert float(result.completed_s[0]) == pytest.approx(100.0 / (1 - loss) ** crossed)


def test_a_training_lacks_it_too() -> None:
    workload = Workload(
        "one", (replace(a_job("a", gpus=8, adaptivity=Adaptivity.RIGID), model="resnet18"),), (Truth(),)
    )
    ends = [
        float(
            simulate(
                workload,
                Setup(
                    cluster=CLUSTER,
                    policy=load_policy("fifo"),
                    sim=SimSettings(crossing_loss=loss, start_s=0.0),
                ),
            ).completed_s[0]
        )
        for loss in (0.0, 0.5)
    ]
    assert ends[1] == pytest.approx(2 * ends[0], rel=1e-3)
