"""Fair share and queues within queues in a file of constraints, as a service has them."""

import pytest

from stretto.model import FairShare, GpuType, InputError, cluster_of
from stretto.policies.registry import load_policy
from stretto.sim.constraints import constraints_file_of
from stretto.sim.run import Setup, simulate
from stretto.sim.settings import SimSettings

from .test_fair_share import workload

CLUSTER = cluster_of("four", (GpuType("gpu"), 1, 4))


def test_a_file_says_shares_half_life_and_parents() -> None:
    said = {
        "queues": [{"name": "lab", "quota_gpus": 3}, {"name": "vision", "parent": "lab", "shares": 2}],
        "fair_share": {"half_life_s": 60, "users": {"ada": 3}},
    }
    found = constraints_file_of(said, "file", CLUSTER).constraints
    assert found.parents == {"vision": "lab"}
    assert found.fair_share == FairShare(
        queue_shares={"lab": 1.0, "vision": 2.0, "default": 1.0},
        user_shares={"ada": 3.0},
        parents={"vision": "lab"},
        half_life_s=60.0,
        limits=True,
    )
    assert constraints_file_of({}, "file", CLUSTER).constraints.fair_share is None


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ({"fair_share": {"half_life_s": 0}}, "file: fair_share: half_life_s must be a number > 0, got 0"),
        ({"fair_share": {"users": {"ada": -1}}}, "file: fair_share: users: ada must be a number > 0, got -1"),
        ({"queues": [{"name": "a", "parent": "b"}]}, "file: queues: parent of queue a"),
    ],
)
def test_what_is_wrong_is_one_line(said: dict[str, object], line: str) -> None:
    with pytest.raises(InputError) as wrong:
        constraints_file_of(said, "file", CLUSTER)
    assert str(wrong.value).startswith(line)


def test_a_simulation_by_such_a_file_is_fair() -> None:
    constraints = constraints_file_of({"fair_share": {}}, "file", CLUSTER).constraints
    setup = Setup(CLUSTER, load_policy("fifo"), SimSettings(), constraints=constraints)
    result = simulate(workload(100, 0.0), setup)
    ends = dict(zip(result.requests.ids.tolist(), result.completed_s.tolist(), strict=True))
    assert max(end for job, end in ends.items() if job.startswith("bob")) == 600.0
