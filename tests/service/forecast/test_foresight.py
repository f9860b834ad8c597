"""The live state forked into the simulator: it goes on as the service would, and answers what if."""

from collections.abc import Mapping
from math import inf, isinf
from typing import Any

import numpy as np
import pytest
from tests.service.scene import Scene

from stretto.jobfile import JobSpec
from stretto.model import InputError, JobId, View
from stretto.scheduler.round import decide
from stretto.service.forecast.explain import explained, question_of
from stretto.service.forecast.fork import NEW, ExtraNodes, fork_of, world_of
from stretto.service.forecast.job_sizes import Ahead, SizeRecorder, sizes_ahead
from stretto.service.forecast.simulate import as_json, configured_as, outlook_of, play, span_of
from stretto.service.scheduling.scheduler import scheduler_of
from stretto.service.scheduling.snapshot_builder import SnapshotBuilder
from stretto.service.state import events as happened
from stretto.service.state.remaining import Basis, Remaining, remaining_of, share_done
from stretto.sim.world import SimulatedWorld


@pytest.fixture
def scene() -> Scene:
    """Eight GPUs: "held" and "grows" hold four and two, "waits" wants four; all have said how long."""
    scene = Scene(nodes=2, gpus=4)
    scene.submit("held", 4, expected_time_s=3600.0)
    scene.submit("grows", 2, elastic=(1, 8), expected_time_s=1800.0)
    scene.give(_held={"n0": 15}, _grows={"n1": 3})
    scene.reconcile()
    scene.now_s = 600.0
    scene.submit("waits", 4, expected_time_s=900.0)
    return scene


@pytest.mark.parametrize("policy", ["fifo", "sia", "srtf", "tiresias", "cornucopia", "gavel"])
def test_a_fork_is_decided_over_as_the_service_would(policy: str, scene: Scene) -> None:
    scene.tell(happened.Configured(policy))
    scheduler = scheduler_of(scene.state.configured)
    live = SnapshotBuilder(scheduler.policy.views).observe(scene.state, 605.0, scheduler.policy.triggers.on)
    world, _ = world_of(fork_of(scene.state, 605.0))
    assert world.wait()
    assert decide(world.observe(), scheduler).actions == decide(live, scheduler).actions


def test_a_fork_knows_which_job_scales_as_the_service_does() -> None:
    scene = Scene(nodes=1, gpus=4)
    scene.tell(happened.Configured("cornucopia", speeds="measured"))
    for name, gpus, gained in (("flat", 2, 0.0), ("linear", 4, 1.0)):
        scene.submit(name, gpus, elastic=(1, 4))
        points = [[1, on, 64 // on, 1, 0.1 / on, 0.1 / (1 + gained * (on - 1))] for on in (1, 2, 4)]
        scene.tell(happened.Reported(name, {"init_batch": 64, "max_batch": 64, "points": points}))
    scheduler = scheduler_of(scene.state.configured)
    live = SnapshotBuilder(scheduler.policy.views).observe(scene.state, 5.0, scheduler.policy.triggers.on)
    world, _ = world_of(fork_of(scene.state, 5.0))
    assert world.wait()
    plan = decide(world.observe(), scheduler)
    assert plan.actions == decide(live, scheduler).actions
    assert {name: held.gpus for name, held in plan.placement.items()} == {"flat": 1, "linear": 3}


def test_who_waits_starts_when_enough_is_free(scene: Scene) -> None:
    fates = play(fork_of(scene.state, scene.now_s)).fates
    assert fates["held"].end_s == pytest.approx(3600.0)
    assert fates["grows"].start_s == 600.0
    assert fates["waits"].start_s == fates["grows"].end_s
    assert fates["waits"].end_s == pytest.approx(fates["waits"].start_s + 900.0)


def test_a_chain_starts_link_by_link(scene: Scene) -> None:
    scene.submit("last", 4, expected_time_s=60.0, depends_on=[{"job": "next"}])
    scene.submit("next", 4, expected_time_s=60.0, depends_on=[{"job": "waits"}])
    fates = play(fork_of(scene.state, scene.now_s)).fates
    assert fates["next"].start_s >= fates["waits"].end_s
    assert fates["last"].start_s >= fates["next"].end_s
    assert not isinf(fates["last"].end_s)


@pytest.mark.parametrize(
    ("more", "now_s"),
    [
        pytest.param({}, 100.0, id="at a moment before it was submitted"),
        pytest.param({"start_after": {"after_s": 600.0}}, 600.0, id="before its time"),
        pytest.param({"depends_on": [{"job": "held", "when": "started"}]}, 600.0, id="beside another"),
    ],
)
def test_who_holds_gpus_is_there_and_may_end(scene: Scene, more: dict[str, Any], now_s: float) -> None:
    scene.submit("short", 2, expected_time_s=10.0, **more)
    scene.give(_short={"n1": 12})
    scene.tell(happened.Reported("short", {"left_s": 10.0}))
    fates = play(fork_of(scene.state, now_s)).fates
    assert (fates["short"].start_s, fates["short"].end_s) == pytest.approx((now_s, now_s + 10.0))


def test_more_nodes_start_who_waits_now(scene: Scene) -> None:
    fork = fork_of(scene.state, scene.now_s, [ExtraNodes("a100", 4)])
    assert outlook_of(fork, 3).start("waits").high_s == scene.now_s
    with pytest.raises(InputError, match="63"):
        fork_of(scene.state, scene.now_s, [ExtraNodes("a100", 63)])


@pytest.mark.parametrize("policy", ["fifo", "sia", "tiresias", "afs", "cornucopia"])
def test_a_fork_leaves_who_trains_on_a_closed_node_where_it_is(policy: str, scene: Scene) -> None:
    scene.tell(happened.Configured(policy))
    scene.tell(happened.NodeCordoned("n0", closed=True))
    held = scene.state.wanted("held")
    fork = fork_of(scene.state, scene.now_s)
    places = []

    def note(world: SimulatedWorld, starts: Mapping[str, float]) -> bool:
        places.append(world.placement.get(JobId("held")))
        return False

    fates = play(fork, stop=note).fates
    assert set(places) <= {held, None}
    assert fates["held"].end_s == pytest.approx(3600.0)


def test_nodes_that_take_no_jobs_take_none_in_a_fork(scene: Scene) -> None:
    scene.tell(happened.NodeCordoned("n1", closed=True))
    fate = play(fork_of(scene.state, scene.now_s)).fates["waits"]
    assert fate.start_s >= 3600.0  # on n0, once "held" has ended
    assert fate.first is not None
    assert fate.first.nodes == (0,)


@pytest.mark.parametrize("kept", [{"gpu_type": "a100", "gpus": 4}, {"nodes": ("n1",)}])
def test_what_is_reserved_is_free_for_who_waits_once_that_is_over(kept: dict[str, Any]) -> None:
    scene = Scene(nodes=2, gpus=4)
    scene.submit("held", 4, expected_time_s=7200.0)
    scene.give(_held={"n0": 15})
    scene.reconcile()
    scene.tell(happened.Reserved("talk", 0.0, 900.0, user="bob", **kept))
    scene.submit("waits", 4, expected_time_s=900.0)
    scene.now_s = 600.0
    fates = play(fork_of(scene.state, scene.now_s)).fates
    assert fates["waits"].start_s == 900.0


def test_one_job_more_is_foreseen_and_not_there(scene: Scene) -> None:
    spec = JobSpec(run="true", expected_time_s=60.0)
    before = scene.state.seq, len(scene.state.jobs)
    fork = fork_of(scene.state, scene.now_s, more=(spec, "bob"))
    assert [one.job.id for one in fork.members] == ["held", "grows", "waits", NEW]
    assert outlook_of(fork, 3).start(NEW).middle_s >= scene.now_s
    assert (scene.state.seq, len(scene.state.jobs)) == before


def test_held_jobs_are_left_out_with_their_reason(scene: Scene) -> None:
    scene.tell(happened.Held("waits", True))
    fork = fork_of(scene.state, scene.now_s)
    assert fork.left_out == {"waits": "HELD"}
    assert [one.job.id for one in fork.members] == ["held", "grows"]


def test_draws_differ_and_the_first_is_as_believed(scene: Scene) -> None:
    outlook = outlook_of(fork_of(scene.state, scene.now_s), 9)
    ends = [draw.fates["held"].end_s for draw in outlook.draws]
    assert ends[0] == pytest.approx(3600.0)
    assert len(set(ends)) == 9
    again = outlook_of(fork_of(scene.state, scene.now_s), 9)
    assert [draw.fates["held"].end_s for draw in again.draws] == ends


def test_a_span_is_as_wide_as_most_draws() -> None:
    assert span_of([5.0, 1.0, 3.0]).middle_s == 3.0
    assert span_of([1.0, inf, inf]).middle_s == inf
    assert span_of([1.0]).plus_minus_s == 0.0


@pytest.mark.parametrize(
    ("more", "report", "left_s", "basis"),
    [
        pytest.param({"expected_time_s": 1000.0}, {}, 900.0, Basis.EXPECTED, id="by the owner"),
        pytest.param({"max_time_s": 500.0}, {}, 400.0, Basis.LIMIT, id="by the limit"),
        pytest.param({}, {}, 3500.0, Basis.ASSUMED, id="an hour where nobody has said"),
        pytest.param({}, {"left_s": 50.0}, 50.0, Basis.TRAINING, id="by the training"),
        pytest.param({"expected_time_s": 101.0}, {}, 10.1, Basis.EXPECTED, id="a tenth for who is late"),
    ],
)
def test_what_is_left_is_said(
    more: dict[str, Any], report: dict[str, object], left_s: float, basis: Basis
) -> None:
    scene = Scene(nodes=1, gpus=4)
    record = scene.submit("a", 2, **more)
    scene.give(_a={"n0": 3})
    scene.now_s = 100.0
    scene.tell(happened.Reported("a", report))
    remaining = remaining_of(record, 100.0)
    assert remaining.left_s == pytest.approx(left_s)
    assert remaining.basis is basis


def test_progress_is_by_the_stop_rule_before_the_owners_word() -> None:
    scene = Scene()
    record = scene.submit("a", 1, stop={"epochs": 10}, expected_time_s=100.0)
    assert share_done(record, 0.0) is None
    scene.give(_a={"n0": 1})
    scene.reconcile()
    assert share_done(record, 50.0) == pytest.approx(0.5)
    scene.tell(happened.Reported("a", {"epoch": 2, "step": 20}))
    assert share_done(record, 50.0) == pytest.approx(0.2)


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is, every change and all futures are tried."""
    for name in ("HYPOTHESES_S", "DRAWS_S"):
        monkeypatch.setattr(f"stretto.service.forecast.explain.{name}", 600.0)


def answer(scene: Scene, job: str) -> dict[str, Any]:
    scheduler = scheduler_of(scene.state.configured)
    record = scene.state.jobs[job]
    return explained(question_of(scene.state, record, scene.now_s, scheduler, None, None, 1.0))


def test_an_explanation_names_the_nearest_request_that_would_start(scene: Scene) -> None:
    found = answer(scene, "waits")
    assert found["changes"] == [{"change": "with 2 x a100", "gpus": 2, "gpu_type": "a100"}]
    assert [one["id"] for one in found["holders"]] == ["held", "grows"]


def test_other_types_are_offered_to_who_names_one(scene: Scene) -> None:
    scene.tell(happened.NodeSeen("n2", "t4", 4))
    scene.submit("picky", resources={"accelerators": [{"gpu_type": "a100", "gpus": 4}]})
    scene.tell(happened.Held("waits", True))
    assert answer(scene, "picky")["changes"] == [{"change": "on t4", "gpus": 4, "gpu_type": "t4"}]


def test_under_prices_a_job_is_told_what_it_could_pay(scene: Scene) -> None:
    scene.tell(happened.Configured("sia"))
    (price,) = answer(scene, "waits")["prices"]
    assert price["gpu_type"] == "a100"
    assert price["pays"] > 0


def test_another_policy_does_not_inherit_settings() -> None:
    before = happened.Configured("sia", settings={"policy.round_s": "5"})
    assert configured_as(before, "", {"policy.growth": "3"}).settings == {
        "policy.round_s": "5",
        "policy.growth": "3",
    }
    assert configured_as(before, "fifo", {}).settings == {}


@pytest.mark.parametrize("max_time_s", [600.0, 86_400.0])
def test_policies_and_forecasts_agree_on_how_long_a_job_with_nothing_but_a_limit_takes(
    max_time_s: float, scene: Scene
) -> None:
    record = scene.submit("limited", 2, max_time_s=max_time_s)
    durations = (
        SnapshotBuilder(frozenset({View.ORACLE_DURATION}))
        .observe(scene.state, scene.now_s, frozenset())
        .jobs.known_durations
    )
    assert durations is not None
    assert durations.remaining_s.tolist()[-1] == max_time_s
    assert remaining_of(record, scene.now_s) == Remaining(max_time_s, Basis.LIMIT)
    assert fork_of(scene.state, scene.now_s).members[-1].whole_s == max_time_s


def test_who_is_away_holds_nothing_and_nobody_waits_for_them(scene: Scene) -> None:
    scene.submit("after", 2, expected_time_s=60.0, depends_on=[{"job": "held"}])
    fates = play(fork_of(scene.state, scene.now_s, away={"held"})).fates
    assert "held" not in fates
    assert fates["waits"].start_s == fates["after"].start_s == scene.now_s


def test_sizes_ahead_are_what_is_held_until_a_job_ends_and_another_begins(scene: Scene) -> None:
    shown = sizes_ahead(fork_of(scene.state, scene.now_s), Ahead(3600.0, ("grows", "waits")), 0.0, 1)
    grows, waits = (shown["jobs"][name]["held"]["middle"] for name in ("grows", "waits"))
    ends_s = play(fork_of(scene.state, scene.now_s)).fates["grows"].end_s - scene.now_s
    for step in range(61):
        has_ended = step * shown["step_s"] >= ends_s
        assert (grows[step] > 0) != has_ended
        assert (waits[step] > 0) == (has_ended and step * shown["step_s"] < ends_s + 900.0)
    assert shown["held"]["middle"][0] == 6
    assert shown["jobs"]["waits"]["start"]["middle"] == pytest.approx(ends_s + scene.now_s)


def test_a_recorder_changes_nothing_of_what_is_foreseen(scene: Scene) -> None:
    fork = fork_of(scene.state, scene.now_s)
    recorder = SizeRecorder(Ahead(1e6).times(scene.now_s), ())
    assert play(fork, 3, recorder=recorder) == play(fork, 3)


def test_a_job_that_ends_between_two_rounds_holds_nothing_from_then_on(scene: Scene) -> None:
    scene.tell(happened.Configured("sia"))
    fork = fork_of(scene.state, scene.now_s)
    ends_s = {name: fate.end_s for name, fate in play(fork).fates.items()}
    times = np.sort([[end_s - 0.5, end_s + 0.5] for end_s in ends_s.values()], axis=None)
    recorder = SizeRecorder(times, tuple(ends_s))
    play(fork, recorder=recorder)
    for name, sizes in zip(ends_s, recorder.by_job, strict=True):
        assert not sizes[times > ends_s[name]].any()
        assert sizes[times == ends_s[name] - 0.5] > 0


def test_a_job_on_several_gpu_types_goes_on_in_a_fork_at_the_speed_of_all_of_them() -> None:
    scene = Scene(nodes=1, gpus=4)
    scene.tell(happened.Configured("lyra"), happened.NodeSeen("v0", "v100", 4))
    asked = {"accelerators": [{"gpu_type": "", "gpus": 4}], "heterogeneous": True}
    scene.submit("mixed", 4, resources=asked)
    scene.give(_mixed={"n0": 0b1, "v0": 0b111})
    scene.reconcile()
    said = {"left_s": 900.0}
    scene.tell(happened.Reported("mixed", said))
    fork = fork_of(scene.state, 5.0)
    (member,) = fork.members
    assert member.remaining.basis is Basis.TRAINING
    fate = play(fork).fates["mixed"]
    assert fate.end_s == pytest.approx(905.0, rel=0.01)
    shown = as_json(fork, outlook_of(fork, 1), 0.0)["jobs"][0]
    assert (shown["gpus"], shown["gpu_type"]) == (4, "a100+v100")
