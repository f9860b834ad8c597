"""What a job has held over time, and why that has changed."""

import pytest
from tests.service.scene import Scene

from stretto.service.state import events as happened
from stretto.service.state.records import MOST_CHANGES
from stretto.service.state.reducer import actions_json
from stretto.service.state.size_changes import Size, sizes_before, sizes_of
from stretto.service.state.usage import Cause, CauseKind, SizeChange, Spell, Use

HOUR_US = 3_600_000_000
QUARTER_S = 900.0


def a_spell(from_s: float, until_s: float, gpus: int, use: Use = Use.USEFUL) -> Spell:
    from_us, until_us = round(from_s * 1e6), round(until_s * 1e6)
    return Spell(from_us, until_us, "a100", "", use, Cause(), gpus * (until_us - from_us))


def test_every_change_of_a_size_is_kept_with_its_reason() -> None:
    scene = Scene(nodes=2, gpus=4)
    scene.tell(happened.Configured("sia"))
    job = scene.submit("j", 2, elastic=(1, 8))
    scene.now_s = 10.0
    scene.give(_j={"n0": 3})
    scene.now_s = 20.0
    scene.give(_j={"n0": 15, "n1": 1})
    scene.now_s = 30.0
    scene.tell(happened.NodeLost("n1"), happened.NodeDead("n1", 0.0))
    scene.now_s = 40.0
    scene.give(_j={"n0": 1})
    scene.now_s = 50.0
    scene.tell(happened.Held("j", True))
    sizes = sizes_of(job, scene.state.unix_s)
    assert [(size.at_s, size.gpus) for size in sizes] == [(10, 2), (20, 5), (30, 0), (40, 1), (50, 0)]
    assert sizes[0].gpu_type == "a100"
    assert sizes[0].reason == "sia decided so"
    assert sizes[2].reason == "node n1 was lost"
    assert "owner" in sizes[4].reason


def test_a_decision_says_why_it_was_made_and_a_preemption_for_which_job() -> None:
    scene = Scene(nodes=1, gpus=4)
    job = scene.submit("low", 4)
    scene.submit("high", 4, priority=5)
    scene.give(_low={"n0": 15})
    placement = scene.state.placement
    assert placement is not None
    assert scene.state.cluster is not None
    scene.now_s = 5.0
    from stretto.model import JobId, actions_between

    actions = actions_between(placement, placement.changed({JobId("low"): None}))
    told = tuple(actions_json(actions, scene.state.cluster))
    preempted = {"low": ("high", 5, 0)}
    scene.tell(happened.Decided(scene.state.seq, 5.0, ("arrival",), told, preempted=preempted))
    assert sizes_of(job, 0.0)[-1].reason == "job high of higher priority needed its GPUs"
    scene.now_s = 6.0
    actions = actions_between(scene.state.placement, placement)  # type: ignore[arg-type]
    told = tuple(actions_json(actions, scene.state.cluster))
    scene.tell(happened.Decided(scene.state.seq, 6.0, ("completion", "round"), told))
    assert sizes_of(job, 0.0)[-1].reason == "fifo decided so: a job ended, its round was due"


def test_a_job_on_several_gpu_types_is_of_all_of_them() -> None:
    scene = Scene(nodes=1, gpus=4)
    scene.tell(happened.NodeSeen("v0", "v100", 4))
    job = scene.submit(
        "j", 3, resources={"accelerators": [{"gpu_type": "", "gpus": 3}], "heterogeneous": True}
    )
    scene.give(_j={"n0": 3, "v0": 1})
    assert [(size.gpus, size.gpu_type) for size in sizes_of(job, 0.0)] == [(3, "a100+v100")]


def test_the_end_of_a_job_is_the_reason_of_its_last_change() -> None:
    scene = Scene(nodes=1, gpus=4)
    job = scene.submit("j", 1)
    scene.give(_j={"n0": 1})
    scene.tell(happened.Cancelled("j"))
    assert sizes_of(job, 0.0)[-1].reason == "the job ended: cancelled"


def test_of_too_many_changes_the_newest_are_kept_and_usage_tells_of_the_others() -> None:
    scene = Scene(nodes=1, gpus=4)
    job = scene.submit("j", 1, elastic=(1, 4))
    cause = Cause(CauseKind.POLICY, "fifo")
    job.usage.spells = [a_spell(0, 2 * QUARTER_S, 1)]
    for number in range(MOST_CHANGES + 1):
        job.note_size(SizeChange(QUARTER_S + number, 2 + number % 2, "a100", cause))
    sizes = sizes_of(job, 0.0)
    assert len(job.size_changes) <= MOST_CHANGES
    assert sizes[0] == Size(0.0, 1.0, "a100", "")
    assert sizes[-1].at_s == QUARTER_S + MOST_CHANGES
    assert [size.at_s for size in sizes] == sorted(size.at_s for size in sizes)


@pytest.mark.parametrize(
    ("spells", "expected"),
    [
        pytest.param([a_spell(0, 1800, 2)], [(0, 2), (1800, 0)], id="one spell is itself"),
        pytest.param(
            [a_spell(0, 450, 4), a_spell(450, 900, 2, Use.LOST)],
            [(0, 3), (900, 0)],
            id="within a quarter of an hour there is a mean",
        ),
        pytest.param(
            [a_spell(0, 900, 4), a_spell(900, 2700, 1), a_spell(3600, 7200, 2)],
            [(0, 4), (900, 1), (2700, 0), (3600, 2), (7200, 0)],
            id="what lies between is a gap",
        ),
    ],
)
def test_usage_tells_what_was_held(spells: list[Spell], expected: list[tuple[float, float]]) -> None:
    assert [(size.at_s, size.gpus) for size in sizes_before(spells[::-1], 0.0, 1e9)] == expected
