"""Policies that read a table are shown what workers have measured, and decide by it."""

from collections.abc import Sequence
from typing import Any

import pytest
from tests.service.play import Deciding
from tests.service.scene import Scene

from stretto.model import MeasuredSpeeds, Trigger, View
from stretto.policies.unisched.policy import LeaseBook
from stretto.service.eventlog import Recorded
from stretto.service.scheduling.job_speeds import speeds_of
from stretto.service.scheduling.replay import Replay
from stretto.service.scheduling.scheduler import scheduler_of
from stretto.service.scheduling.snapshot_builder import SnapshotBuilder
from stretto.service.state import events as happened
from stretto.service.state.events import Configured, body_of
from stretto.service.state.state import State

BATCH = 64
TABLES = frozenset({View.THROUGHPUT_TABLE})
BOUNDS = {"init_batch": BATCH, "max_batch": BATCH}


def points(*counts: int, scales: bool, nodes: int = 1) -> list[list[float]]:
    """Operating points: a step takes 0.1 s on one worker, and as long or a share of it on several."""
    return [
        [
            nodes,
            count,
            BATCH // count,
            1,
            0.1 / count,
            0.1 / count if scales else 0.1 * (1 + 2 * (nodes > 1)),
        ]
        for count in counts
    ]


def report(scales: bool, *counts: int) -> dict[str, Any]:
    return {**BOUNDS, "points": points(*counts, scales=scales)}


def tables(scene: Scene) -> Sequence[MeasuredSpeeds]:
    snapshot = SnapshotBuilder(TABLES).observe(scene.state, scene.now_s, frozenset({Trigger.ROUND}))
    return snapshot.jobs.tables


def test_a_table_follows_what_a_job_reports_and_what_is_known_of_its_model_when_it_comes() -> None:
    scene = Scene(1)
    scene.submit("1", elastic=(1, 4), model="flat")
    (assumed,) = tables(scene)
    assert assumed.per_s[0, 2] == pytest.approx(1.8)
    scene.tell(happened.Reported("1", report(False, 1, 2)))
    scene.submit("2", elastic=(1, 4), model="flat")
    scene.submit("3", elastic=(1, 4), model="other")
    known, of_model, other = tables(scene)
    assert known.per_s[0, 1:3] == pytest.approx([10, 10])
    assert of_model.per_s == pytest.approx(known.per_s)
    assert other.per_s == pytest.approx(assumed.per_s)


def test_until_something_is_measured_steps_take_as_long_as_the_owner_of_a_job_expects() -> None:
    scene = Scene(1)
    scene.submit("1", gpus=2, elastic=(1, 4), stop={"steps": 7_000}, expected_time_s=1_000.0)
    assert tables(scene)[0].per_s[0, 2] == pytest.approx(7)


def test_a_log_that_does_not_say_so_was_decided_with_the_assumed_curve() -> None:
    scene = Scene(1)
    scene.submit("1", elastic=(1, 4))
    (assumed,) = tables(scene)
    scene.tell(happened.Reported("1", report(False, 1, 2)))
    builder = SnapshotBuilder(TABLES)
    shown: dict[str, Any] = {}
    for rule in ("measured", "assumed", "measured"):
        scene.tell(Configured("fifo", speeds=rule))
        shown[rule] = builder.observe(scene.state, 0.0, frozenset()).jobs.tables[0].per_s
    assert shown["assumed"] == pytest.approx(assumed.per_s)
    assert shown["measured"][0, 2] == pytest.approx(10)
    assert happened.event_of("Configured", {"policy": "fifo"}) == Configured("fifo", speeds="assumed")


def test_a_table_stays_the_same_object_until_something_new_is_measured() -> None:
    scene = Scene(1)
    scene.submit("1", elastic=(1, 4))
    scene.tell(happened.Reported("1", report(True, 1, 2)))
    (before,) = tables(scene)
    scene.tell(happened.Reported("1", {"step": 40}))
    assert tables(scene)[0] is before
    scene.tell(happened.Reported("1", {"points": points(4, scales=False)}))
    assert tables(scene)[0] is not before


def test_people_are_shown_the_same_table_with_its_sources_and_errors() -> None:
    scene = Scene(2)
    scene.submit("0", elastic=(1, 4), model="m")
    scene.tell(happened.Reported("0", report(True, 1)))
    scene.submit("1", elastic=(1, 6), model="m")
    scene.tell(happened.Reported("1", {**BOUNDS, "points": points(2, scales=True)}))
    _, table = tables(scene)
    shown = speeds_of(scene.state, scene.state.jobs["1"])
    assert shown is not None
    assert (shown.is_relative, shown.batch, shown.measurements, shown.of_model) == (False, BATCH, 2, 1)
    by_place = {(each.gpus, each.spread): each for each in shown.entries}
    assert list(by_place) == [(1, False), (2, False), (2, True), (4, False), (4, True)]
    assert {place: each.source for place, each in by_place.items()} == {
        **dict.fromkeys([(1, False), (2, False)], "measured"),
        **dict.fromkeys([(2, True), (4, False), (4, True)], "fitted"),
    }
    assert by_place[4, False].per_s == pytest.approx(table.per_s[0, 4], rel=1e-3)
    assert by_place[1, False].error == 0.05
    scene.tell(happened.Ended("1", "COMPLETED", 0))
    assert speeds_of(scene.state, scene.state.jobs["1"]) is None


def test_of_a_job_that_nobody_has_measured_people_see_that_it_is_assumed() -> None:
    scene = Scene(1)
    shown = speeds_of(scene.state, scene.submit("1", gpus=2, elastic=(1, 4)))
    assert shown is not None
    assert shown.is_relative
    assert {each.source for each in shown.entries} == {"assumed"}
    assert {each.error for each in shown.entries} == {None}


def test_people_are_shown_speeds_of_whole_workers_only() -> None:
    scene = Scene(2, gpus=8)
    scene.tell(happened.NodeSeen("r0", "rtx", 8))
    resources = {"gpus_per_worker": 2, "replica_gpus": {"a100": 2, "rtx": 8}}
    shown = speeds_of(scene.state, scene.submit("1", elastic=(2, 16), resources=resources))
    assert shown is not None
    sizes = {name: {each.gpus for each in shown.entries if each.gpu_type == name} for name in ("a100", "rtx")}
    assert sizes == {"a100": {2, 4, 8, 16}, "rtx": {8}}


# ── what policies make of it ────────────────────────────────────────────────────────────────────────────────


class Known(Deciding):
    """The model `flat` was measured to be as fast on one GPU as on several, the model `linear` to scale."""

    def __init__(self, policy: str, speeds: str, nodes: int = 1, gpus: int = 4, **settings: str) -> None:
        super().__init__(policy, nodes, gpus)
        said = {f"policy.{key}": value for key, value in settings.items()}
        configured = Configured(policy, settings=said, speeds=speeds)
        self.scheduler = scheduler_of(configured)
        self.observer = SnapshotBuilder(self.scheduler.policy.views)
        self.scene.tell(configured)

    def measure(self, model: str, *reports: dict[str, Any]) -> None:
        """Jobs of a model have run on one GPU of the first node, the second and so on, and reported."""
        for node, told in zip(self.scene.state.nodes, reports, strict=False):
            name = f"{model}-{node.name}"
            self.submit(name, "", 1, 8, model=model)
            worker = {"id": f"{name}.1.0", "node": node.name, "mask": 1}
            self.scene.tell(happened.WorkersWanted(name, 1, (worker,)), happened.Reported(name, told))
            self.end(name)


@pytest.mark.parametrize(("speeds", "flat", "linear"), [("assumed", 2, 2), ("measured", 1, 3)])
def test_under_cornucopia_a_job_that_does_not_scale_keeps_one_worker(
    speeds: str, flat: int, linear: int
) -> None:
    live = Known("cornucopia", speeds)
    live.measure("flat", report(False, 1, 2, 4))
    live.measure("linear", report(True, 1, 2, 4))
    live.submit("flat", "", 2, model="flat", elastic={"min_gpus": 1, "max_gpus": 4})
    live.submit("linear", "", 4, model="linear", elastic={"min_gpus": 1, "max_gpus": 4})
    live.decide()
    assert (live.gpus("flat"), live.gpus("linear")) == (flat, linear)


@pytest.mark.parametrize("policy", ["optimus", "afs", "elasticflow"])
def test_other_policies_that_size_jobs_give_it_one_worker_too(policy: str) -> None:
    held = {}
    for speeds in ("assumed", "measured"):
        live = Known(policy, speeds)
        live.measure("flat", report(False, 1, 2, 4))
        live.measure("linear", report(True, 1, 2, 4))
        for name in ("flat", "linear"):
            live.submit(name, "", 1, 4, model=name, stop={"steps": 100_000})
        live.decide()
        held[speeds] = live.gpus("flat"), live.gpus("linear")
    assert held["measured"] == (1, 2 if policy == "elasticflow" else 3), "ElasticFlow has powers of two"
    assert held["assumed"][0] > 1


@pytest.mark.parametrize(("speeds", "promised"), [("assumed", 2), ("measured", 1)])
def test_under_unisched_a_job_that_is_slow_on_several_cells_is_not_promised_them(
    speeds: str, promised: int
) -> None:
    live = Known("unisched", speeds, gpus=8, profiling="off")
    far = {**BOUNDS, "points": [*points(1, 2, scales=True), *points(2, scales=False, nodes=2)]}
    live.measure("far", far)
    rewards = [{"by": {"after_s": 3_600.0}, "worth": 100.0}]
    live.submit("six", "", 6, model="far", rewards=rewards, expected_time_s=3_000.0)
    live.submit("two", "", 2, rewards=rewards, expected_time_s=3_000.0)
    live.decide()
    assert isinstance(live.scene.memory, LeaseBook)
    assert live.scene.memory.accepted.sum() == promised


def test_under_gavel_the_fast_type_goes_to_the_job_that_gains_by_it() -> None:
    held: dict[str, list[str]] = {}
    for speeds in ("assumed", "measured"):
        live = Known("gavel", speeds)
        live.scene.tell(happened.NodeSeen("fast", "h100", 4))
        quick = {**BOUNDS, "points": [[1, 1, BATCH, 1, 0.01, 0.01]]}
        live.measure("flat", report(True, 1), report(True, 1))
        live.measure("linear", report(True, 1), quick)
        for name in ("linear", "flat"):
            live.submit(name, "", 4, model=name)
        fast = live.scene.state.jobs
        held[speeds] = []
        for _ in range(12):
            live.scene.now_s += 330.0
            live.decide()
            held[speeds].append("flat" if fast["flat"].accounting.kind == 1 else "linear")
    assert set(held["measured"]) == {"linear"}
    assert set(held["assumed"]) == {"linear", "flat"}


def test_under_gavel_a_job_that_nobody_has_measured_is_not_passed_by_one_of_short_steps() -> None:
    live = Known("gavel", "measured")
    live.measure("known", report(True, 1))  # ten steps a second, where that of a new job is relative
    for name in ("known", "new"):
        live.submit(name, "", 4, model=name)
    served = set()
    for _ in range(6):
        live.scene.now_s += 330.0
        live.decide()
        served |= {name for name in ("known", "new") if live.gpus(name)}
    assert served == {"known", "new"}


# ── decided again ───────────────────────────────────────────────────────────────────────────────────────────


def replayed(live: Deciding, speeds: str | None) -> Replay:
    """The log of a scene decided again, as one whose configuration says this of speeds, or nothing."""
    replay = Replay(State())
    for number, (event, at_s) in enumerate(zip(live.scene.log, live.scene.times, strict=True), start=1):
        body = dict(body_of(event))
        if isinstance(event, Configured):
            body.pop("speeds", None)
            body |= {} if speeds is None else {"speeds": speeds}
        replay.next(Recorded(number, at_s, type(event).__name__, "", body))
    replay.finish()
    return replay


@pytest.mark.parametrize(
    ("decided_with", "log_says", "differ"),
    [
        pytest.param("assumed", None, 0, id="a log from before"),
        pytest.param("measured", "measured", 0, id="a log from now"),
        pytest.param("assumed", "measured", 1, id="the rule matters"),
    ],
)
def test_a_log_is_decided_again_by_the_rule_that_it_was_decided_with(
    decided_with: str, log_says: str | None, differ: int
) -> None:
    live = Known("cornucopia", decided_with)
    live.measure("flat", report(False, 1, 2, 4))
    live.measure("linear", report(True, 1, 2, 4))
    live.submit("flat", "", 2, model="flat", elastic={"min_gpus": 1, "max_gpus": 4})
    live.submit("linear", "", 4, model="linear", elastic={"min_gpus": 1, "max_gpus": 4})
    live.decide()
    replay = replayed(live, log_says)
    assert (replay.decisions, len(replay.differences)) == (1, differ)
