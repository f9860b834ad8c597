"""A job whose file says that it only infers: throughput is its goodput, and workers do not wait."""

from typing import Any

import pytest
from tests.service.scene import Scene

from stretto.model import Purpose, Trigger, View
from stretto.scheduler.round import decide
from stretto.service.scheduling.estimates import evidence_of, limits_of, work_left
from stretto.service.scheduling.scheduler import scheduler_of
from stretto.service.scheduling.snapshot_builder import SnapshotBuilder
from stretto.service.state import events as happened

BATCH = 32
ROUND = frozenset({Trigger.ROUND})


def submitted(
    scene: Scene, name: str, purpose: Purpose, points: list[list[float]], own_batch: int = BATCH, **rest: Any
) -> None:
    """A job of one to eight GPUs that has reported what it measured."""
    scene.submit(name, elastic=(1, 8), purpose=purpose.value, **rest)
    said = {"init_batch": own_batch, "max_batch": own_batch, "points": points}
    scene.tell(happened.Reported(name, said))


def alone(batch_s: float) -> list[list[float]]:
    return [[1, 1, BATCH, 1, batch_s, batch_s]]


def test_its_goodput_is_throughput_and_each_worker_keeps_its_own_batch() -> None:
    scene = Scene(2)
    submitted(scene, "1", Purpose.BATCH_INFERENCE, alone(0.5))
    snapshot = SnapshotBuilder(frozenset({View.GOODPUT_MODEL})).observe(scene.state, 0.0, ROUND)
    sia = scheduler_of(happened.Configured("sia"))
    configurations = sia.policy.configurations(snapshot.cluster)
    (row,) = sia.estimator.estimate(snapshot, configurations).per_s
    # Steps are batches of one worker, of which eight workers take eight at a time.
    assert row.tolist() == pytest.approx((configurations.gpus / 0.5).tolist())
    evidence = evidence_of(scene.state.jobs["1"], snapshot.cluster)
    assert evidence is not None
    assert (evidence.limits.min_local.tolist(), evidence.limits.max_local.tolist()) == ([BATCH], [BATCH])


@pytest.mark.parametrize(
    ("purpose", "expected"), [(Purpose.BATCH_INFERENCE, [2, 4, 8]), (Purpose.TRAINING, [2, 3.6, 6.48])]
)
def test_until_several_workers_were_measured_a_table_is_a_straight_line(
    purpose: Purpose, expected: list[float]
) -> None:
    scene = Scene(2)
    submitted(scene, "1", purpose, alone(0.5), batch={"init": BATCH})
    (table,) = (
        SnapshotBuilder(frozenset({View.THROUGHPUT_TABLE})).observe(scene.state, 0.0, ROUND).jobs.tables
    )
    assert [table.per_s[0, 1], table.per_s[0, 2], table.spread_per_s[0, 4]] == pytest.approx(expected)


def test_what_several_workers_measured_counts_where_they_are_in_each_others_way() -> None:
    scene = Scene(2)
    submitted(scene, "1", Purpose.BATCH_INFERENCE, [*alone(0.5), [1, 4, BATCH, 1, 1.0, 1.0]])
    (table,) = (
        SnapshotBuilder(frozenset({View.THROUGHPUT_TABLE})).observe(scene.state, 0.0, ROUND).jobs.tables
    )
    assert table.per_s[0, [1, 4]] == pytest.approx([2, 4])


def test_sia_gives_it_gpus_by_its_throughput_beside_a_training_that_does_not_scale() -> None:
    scene = Scene(2)
    flat = [[1, count, BATCH // count, 1, 0.5 / count, 0.5] for count in (1, 2, 4)]
    submitted(scene, "1", Purpose.TRAINING, flat, batch={"init": BATCH})
    # Its workers take one item at a time: as a batch to be divided, that would keep only one of them busy.
    singly = [[1, count, 1, 1, 0.5, 0.5] for count in (1, 2)]
    submitted(scene, "2", Purpose.BATCH_INFERENCE, singly, own_batch=1)
    sia = scheduler_of(happened.Configured("sia"))
    scene.give(_1={"n0": 1}, _2={"n1": 3})
    scene.reconcile()
    scene.ready(*scene.running)
    scene.reconcile()
    for name in ("1", "2"):
        scene.join(name)
    scene.now_s = 7200.0
    snapshot = SnapshotBuilder(sia.policy.views).observe(scene.state, scene.now_s, ROUND)
    plan = decide(snapshot, sia)
    gpus = {name: allocation.gpus for name, allocation in plan.placement.items()}
    assert gpus == {"1": 1, "2": 4}


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        pytest.param({}, 500, id="as the file says, before it has begun"),
        pytest.param(
            {"init_batch": 10, "dataset_samples": 1000, "progress_steps": 40}, 60, id="its items, afterwards"
        ),
    ],
)
def test_what_is_left_is_batches_of_one_worker(said: dict[str, Any], expected: float) -> None:
    scene = Scene(1)
    record = scene.submit("1", purpose="batch-inference", stop={"steps": 500})
    scene.tell(happened.Reported("1", said))
    assert work_left(record) == expected


def test_before_its_script_says_so_each_worker_has_its_share_of_the_batch() -> None:
    scene = Scene(2)
    record = scene.submit("1", gpus=4, elastic=(1, 8), purpose="batch-inference", batch={"init": 130})
    assert scene.state.cluster is not None
    limits = limits_of(record, scene.state.cluster)
    assert limits is not None
    assert (limits.init_batch, limits.max_batch) == (33, 33 * 8)
