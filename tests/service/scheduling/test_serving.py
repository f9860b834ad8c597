"""A job whose file promises a latency: what keeps it follows from how long its workers' batches took."""

from math import isnan
from typing import Any

import pytest
from tests.service.scene import Scene

from stretto.model import Adaptivity, Trigger, View, Why
from stretto.scheduler.round import decide
from stretto.service.scheduling.estimates import speed_evidence_of, work_left
from stretto.service.scheduling.job_serving import serving_of
from stretto.service.scheduling.scheduler import scheduler_of
from stretto.service.scheduling.snapshot_builder import SnapshotBuilder
from stretto.service.state import events as happened
from stretto.service.state.remaining import remaining_of
from stretto.service.state.reported_metrics import checked_report

ROUND = frozenset({Trigger.ROUND})
PROMISED = {"latency_s": 0.2, "requests_per_s": 50.0}  # of 10 ms and 10 ms a request: 9 at once, 90 a second


def submitted(
    scene: Scene, name: str = "1", alpha_s: float = 0.01, beta_s: float = 0.01, **rest: Any
) -> None:
    """A job of one to eight GPUs that serves, and has reported how long batches take; 0: nothing yet."""
    usual: dict[str, Any] = {"elastic": (1, 8), "purpose": "serving", "serving": PROMISED}
    scene.submit(name, **(usual | rest))
    if alpha_s:
        batches = [(size, alpha_s + 0.01 * size) for size in (1, 4, 8)]
        points = [[1, 1, size, 1, batch_s, batch_s] for size, batch_s in batches]
        scene.tell(happened.Reported(name, {"max_local": 64, "points": points}))


def tables(scene: Scene) -> Any:
    observed = SnapshotBuilder(frozenset({View.THROUGHPUT_TABLE})).observe(scene.state, 0.0, ROUND)
    return [table.per_s[0].tolist() for table in observed.jobs.tables]


@pytest.mark.parametrize(
    ("per_s", "fewest"),
    [
        pytest.param(50.0, 1, id="one worker"),
        (100.0, 2),
        (700.0, 8),
        pytest.param(721.0, None, id="too many"),
    ],
)
def test_gpus_that_keep_the_latency_are_worth_one_and_all_others_nothing(
    per_s: float, fewest: int | None
) -> None:
    scene = Scene(2)
    submitted(scene, serving={**PROMISED, "requests_per_s": per_s})
    snapshot = SnapshotBuilder(frozenset({View.GOODPUT_MODEL})).observe(scene.state, 0.0, ROUND)
    sia = scheduler_of(happened.Configured("sia"))
    configurations = sia.policy.configurations(snapshot.cluster)
    (row,) = sia.estimator.estimate(snapshot, configurations).per_s.tolist()
    worth = dict(zip(configurations.gpus.tolist(), row, strict=True))
    assert {gpus for gpus, goodput in worth.items() if goodput == 1.0} == {
        gpus for gpus in (1, 2, 4, 8) if fewest is not None and gpus >= fewest
    }
    assert all(isnan(goodput) for goodput in worth.values() if goodput != 1.0)
    (table,) = tables(scene)
    assert [gpus for gpus in range(1, 9) if table[gpus] == 1.0] == list(range(fewest or 9, 9))


@pytest.mark.parametrize(
    ("batch", "workers"),
    [
        ({}, 2),
        pytest.param({"per_gpu": 4}, 3, id="four at once take 50 ms, 80 a second"),
        ({"per_gpu": 1}, 4),
    ],
)
def test_a_worker_answers_no_more_together_than_its_file_allows(batch: dict[str, int], workers: int) -> None:
    scene = Scene(2)
    submitted(scene, serving={**PROMISED, "requests_per_s": 170.0}, batch=batch)
    (table,) = tables(scene)
    assert [gpus for gpus in range(1, 9) if table[gpus] == 1.0] == list(range(workers, 9))


def test_before_anything_was_timed_it_begins_with_the_fewest() -> None:
    scene = Scene(2)
    submitted(scene, alpha_s=0.0, serving={**PROMISED, "requests_per_s": 700.0})
    assert planned(scene) == {"1": 1}
    assert tables(scene)[0][1:] == [1.0] * 8


def planned(scene: Scene, policy: str = "sia") -> dict[str, int]:
    scheduler = scheduler_of(happened.Configured(policy))
    snapshot = SnapshotBuilder(scheduler.policy.views).observe(scene.state, scene.now_s, ROUND)
    return {str(name): held.gpus for name, held in decide(snapshot, scheduler).placement.items()}


@pytest.mark.parametrize("policy", ["sia", "stretto", "pollux", "afs", "optimus"])
def test_once_batches_were_timed_it_gets_what_keeps_its_latency_and_trainings_the_rest(policy: str) -> None:
    scene = Scene(2)
    submitted(scene, serving={**PROMISED, "requests_per_s": 150.0}, max_time_s=7200.0)
    scene.submit("2", elastic=(1, 8), batch={"init": 32}, stop={"steps": 10_000})
    flat = [[1, count, 32 // count, 1, 0.5 / count, 0.5 / count] for count in (1, 2, 4)]
    scene.tell(happened.Reported("2", {"init_batch": 32, "max_batch": 32, "points": flat}))
    scene.give(_1={"n0": 1}, _2={"n1": 1})
    scene.reconcile()
    scene.ready(*scene.running)
    scene.reconcile()
    for name in ("1", "2"):
        scene.join(name)
    scene.now_s = 7200.0
    held = planned(scene, policy)
    assert held["1"] == 2
    assert held["2"] >= 2


def test_where_no_gpus_in_its_range_keep_its_latency_it_says_so() -> None:
    scene = Scene(2)
    submitted(scene, alpha_s=0.2)
    sia = scheduler_of(happened.Configured("sia"))
    snapshot = SnapshotBuilder(sia.policy.views).observe(scene.state, 0.0, ROUND)
    plan = decide(snapshot, sia)
    assert not plan.placement
    assert plan.why.of(0) is Why.TOO_SLOW


def test_a_type_on_which_it_never_ran_counts_by_its_speed_until_batches_were_timed_there() -> None:
    scene = Scene(1)
    scene.tell(happened.NodeSeen("s0", "t4", 4))
    submitted(scene)
    (of_a100, of_t4) = tables_by_type(scene)
    assert of_a100[1:] == of_t4[1:] == [1.0] * 4
    slow = [[1, 1, size, 1, 0.2, 0.2] for size in (1, 2)]
    scene.give(1, _1={"s0": 1})
    scene.reconcile()
    scene.tell(happened.Reported("1", {"points": slow}))
    (of_a100, of_t4) = tables_by_type(scene)
    assert of_a100[1] == 1.0
    assert all(isnan(speed) for speed in of_t4)


def tables_by_type(scene: Scene) -> list[list[float]]:
    observed = SnapshotBuilder(frozenset({View.THROUGHPUT_TABLE})).observe(scene.state, 0.0, ROUND)
    rows: list[list[float]] = observed.jobs.tables[0].per_s.tolist()
    return rows


def test_what_a_training_of_its_model_has_shown_says_nothing_of_it() -> None:
    scene = Scene(2)
    scene.submit("1", elastic=(1, 8), model="m")
    scene.tell(happened.Reported("1", {"init_batch": 8, "points": [[1, 1, 8, 1, 5.0, 5.0]]}))
    submitted(scene, "2", alpha_s=0.0, model="m")
    assert speed_evidence_of(scene.state.jobs["2"], scene.state.cluster).measurements == ()  # type: ignore[arg-type]
    scene.tell(happened.Reported("2", {"points": [[1, 1, 8, 1, 0.1, 0.1]]}))
    submitted(scene, "3", alpha_s=0.0, model="m")
    (measured,) = speed_evidence_of(scene.state.jobs["3"], scene.state.cluster).measurements  # type: ignore[arg-type]
    assert measured.grad_s == 0.1


def test_its_time_passes_by_the_clock_however_many_gpus_it_holds() -> None:
    scene = Scene(2)
    submitted(scene, expected_time_s=3600.0)
    record = scene.state.jobs["1"]
    scene.give(_1={"n0": 15})
    assert remaining_of(record, 600.0).left_s == pytest.approx(3000.0)
    views = frozenset({View.ESTIMATED_DURATION})
    estimates = SnapshotBuilder(views).observe(scene.state, 600.0, ROUND).jobs.estimates
    assert estimates.remaining_s.tolist() == pytest.approx([3000.0])
    assert work_left(record) == pytest.approx(3600.0)
    submitted(scene, "2")
    assert isnan(work_left(scene.state.jobs["2"]))


def test_a_rigid_one_is_worth_something_on_the_types_that_keep_its_latency() -> None:
    scene = Scene(1)
    scene.tell(happened.NodeSeen("s0", "t4", 4))
    submitted(scene, elastic=None)
    record = scene.state.jobs["1"]
    assert record.job.adaptivity is Adaptivity.RIGID
    scene.give(1, _1={"s0": 1})
    scene.reconcile()
    scene.tell(happened.Reported("1", {"points": [[1, 1, 1, 1, 0.2, 0.2], [1, 1, 2, 1, 0.3, 0.3]]}))
    scene.now_s = 7200.0
    snapshot = SnapshotBuilder(frozenset({View.GOODPUT_MODEL})).observe(scene.state, 0.0, ROUND)
    sia = scheduler_of(happened.Configured("sia"))
    speeds = sia.estimator.estimate(snapshot, sia.policy.configurations(snapshot.cluster))
    (by_type,) = speeds.requested_per_s.tolist()
    assert by_type[0] == 1.0
    assert isnan(by_type[1])


def told(scene: Scene, **by_worker: dict[str, float]) -> None:
    ids = {"one": "1.1.0", "other": "1.1.1", "later": "1.2.0"}
    scene.tell(happened.Reported("1", {"requests": {ids[name]: by_worker[name] for name in by_worker}}))


def test_people_see_what_keeps_its_latency_and_how_many_requests_were_late() -> None:
    scene = Scene(1)
    scene.tell(happened.NodeSeen("s0", "t4", 4))
    submitted(scene, serving={**PROMISED, "requests_per_s": 150.0}, max_time_s=60.0)
    told(scene, one={"answered": 90, "late": 3, "p50_s": 0.1, "p99_s": 0.2})
    told(scene, other={"answered": 10, "late": 0, "p50_s": 0.05, "p99_s": 0.3})
    shown = serving_of(scene.state, scene.state.jobs["1"])
    assert shown is not None
    needed = {"gpus": 2, "batch": 9, "batch_s": pytest.approx(0.1, rel=0.01)}
    assert shown.to_json() == {
        **PROMISED,
        "requests_per_s": 150.0,
        "needs": [
            {"gpu_type": "a100", **needed, "timed": True},
            {"gpu_type": "t4", **needed, "timed": False},
        ],
        "answered": 100,
        "late": 3,
        "p50_s": 0.1,
        "p99_s": 0.3,
    }
    told(scene, later={"answered": 5, "late": 1})
    again = serving_of(scene.state, scene.state.jobs["1"])
    assert again is not None
    assert (again.answered, again.late, again.p99_s) == (5, 1, None), "of the newest attempt"
    scene.submit("2")
    assert serving_of(scene.state, scene.state.jobs["2"]) is None


@pytest.mark.parametrize("counts", [5, {"answered": -1}, {"guessed": 1}, {"late": 0.5}, {"p50_s": -1.0}])
def test_counts_that_cannot_be_are_left_out_of_a_report(counts: Any) -> None:
    for wrong in ([counts], {"1.1.0": counts}):
        assert checked_report({"step": 1, "requests": wrong}) == {"step": 1}
    good = {"1.1.0": {"answered": 1, "late": 0, "p50_s": 0.5}}
    assert checked_report({"requests": good}) == {"requests": good}
