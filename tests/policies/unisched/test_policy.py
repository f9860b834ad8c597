import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stretto.experiments.spec import RunSpec, run_spec
from stretto.model import (
    Adaptivity,
    Allocation,
    Cluster,
    Durations,
    InputError,
    Job,
    JobId,
    Learning,
    MeasuredSpeeds,
    Plan,
    Reward,
    Shares,
    Snapshot,
    Why,
    no_speeds,
)
from stretto.model.job import Goal
from stretto.policies.common.remaining_time import Fits, remaining_s
from stretto.policies.unisched.estimator import best_effort_value
from stretto.policies.unisched.policy import Profiling, UniSched
from stretto.scheduler.check import check_shares
from stretto.sim.run import Setup, simulate
from stretto.sim.settings import SimSettings
from stretto.testing.builders import a_cluster, a_job, a_snapshot, grant, some_progress
from stretto.traces.workload import Truth, Workload

HOUR_S, LEASE_S, TICK_S = 3_600.0, 600.0, 300.0
KNOWN_JOBS = UniSched(profiling=Profiling.OFF)
LINEAR = MeasuredSpeeds(np.arange(129.0)[None, :], np.arange(129.0)[None, :])


def rigid(name: str, gpus: int = 1, at_s: float = 0.0, **rest: Any) -> Job:
    return a_job(name, gpus, at_s, adaptivity=Adaptivity.RIGID, **rest)


def due(name: str, gpus: int, by_s: float, at_s: float = 0.0, value: float = 100.0) -> Job:
    return rigid(name, gpus, at_s, rewards=(Reward(by_s, value),))


def seen(
    *jobs: Job,
    cluster: Cluster,
    left_s: dict[str, float] | None = None,
    profiled_s: float = 0.0,
    table: MeasuredSpeeds = LINEAR,
    now_s: float = 0.0,
    held: dict[str, Allocation] | None = None,
    memory: Any = None,
    **progress: Any,
) -> Snapshot:
    """Jobs with an hour left each, unless said otherwise."""
    ordered = sorted(jobs, key=lambda job: (job.submitted_s, job.id))
    left = np.array([(left_s or {}).get(job.id, HOUR_S) for job in ordered])
    return a_snapshot(
        *jobs,
        cluster=cluster,
        allocations=held,
        now_s=now_s,
        memory=memory,
        known_progress=some_progress(len(jobs), profiled_s=np.full(len(jobs), profiled_s), **progress),
        known_estimates=Durations(np.full(len(jobs), 2 * HOUR_S), left),
        known_tables=[table] * len(jobs),
        known_learning=nothing_learned(len(jobs)),
    )


def nothing_learned(jobs: int) -> Learning:
    none = np.full(jobs, np.nan)
    return Learning(none, none, none, none, none, [np.zeros(0)] * jobs)


def decide(policy: UniSched, snapshot: Snapshot) -> Shares:
    shown = snapshot.limited_to(policy.views)
    shares = policy.allocate(
        shown,
        no_speeds(len(snapshot.jobs), len(snapshot.cluster.types), policy.configurations(shown.cluster)),
    )
    check_shares(snapshot, shares)
    return shares


def given(snapshot: Snapshot, shares: Shares) -> dict[str, int]:
    """GPUs by job that has some."""
    ids = snapshot.jobs.ids
    return {str(ids[row]): int(shares.gpus[row]) for row in np.flatnonzero(shares.gpus).tolist()}


def served(policy: UniSched, snapshot: Snapshot) -> set[str]:
    return set(given(snapshot, decide(policy, snapshot)))


@pytest.mark.parametrize(
    ("gpus", "profiled_on", "nodes"),
    [
        pytest.param(1, 1, 1, id="one GPU for one"),
        pytest.param(6, 2, 1, id="two of a node for what fits a node"),
        pytest.param(16, 2, 2, id="one on each of two nodes for what does not"),
    ],
)
def test_a_new_job_is_profiled_on(gpus: int, profiled_on: int, nodes: int) -> None:
    snapshot = seen(rigid("new", gpus), cluster=a_cluster(8, 8, 8))
    shares = decide(UniSched(), snapshot)
    assert given(snapshot, shares) == {"new": profiled_on}
    assert shares.profiling is not None
    assert shares.profiling.tolist() == [True]
    assert len(shares.pinned[0].nodes) == nodes


def test_once_profiled_it_gets_all_its_gpus() -> None:
    snapshot = seen(rigid("old", 16), cluster=a_cluster(8, 8), profiled_s=300.0)
    shares = decide(UniSched(), snapshot)
    assert given(snapshot, shares) == {"old": 16}
    assert shares.profiling is not None
    assert not shares.profiling.any()


@pytest.mark.parametrize(("profiled_s", "gets"), [(299.2, 16), (269.0, 2)])
def test_a_profiling_run_that_a_service_began_late_is_over_with_its_lease(
    profiled_s: float, gets: int
) -> None:
    """A decision takes a moment, and what it starts holds GPUs from then on: the next round is on time."""
    snapshot = seen(rigid("old", 16), cluster=a_cluster(8, 8), profiled_s=profiled_s)
    assert given(snapshot, decide(UniSched(), snapshot)) == {"old": gets}


def test_a_job_that_cannot_be_stopped_is_not_profiled() -> None:
    """A profiling run would be all that it ever gets."""
    snapshot = seen(rigid("fixed", 8, preemptible=False), cluster=a_cluster(8))
    assert given(snapshot, decide(UniSched(), snapshot)) == {"fixed": 8}


NO_SLACK = due("urgent", 8, by_s=6 * LEASE_S)
SLACK = due("patient", 8, by_s=12 * LEASE_S)
BEST_EFFORT = rigid("anytime", 8)


@pytest.mark.parametrize(
    ("policy", "deadline", "first"),
    [
        pytest.param(KNOWN_JOBS, NO_SLACK, "urgent", id="a deadline that cannot wait goes first"),
        pytest.param(KNOWN_JOBS, SLACK, "anytime", id="one that can makes room for best effort"),
        pytest.param(replace(KNOWN_JOBS, puts_off=False), SLACK, "patient", id="unless it puts nothing off"),
        pytest.param(
            KNOWN_JOBS, due("late", 8, by_s=5 * LEASE_S), "anytime", id="what cannot be met is last"
        ),
    ],
)
def test_between_a_deadline_and_best_effort(policy: UniSched, deadline: Job, first: str) -> None:
    assert served(policy, seen(deadline, BEST_EFFORT, cluster=a_cluster(8))) == {first}


@pytest.mark.parametrize(
    ("policy", "by_s", "first"),
    [
        pytest.param(KNOWN_JOBS, 29 * 60.0, "short", id="goes first while the clock allows it"),
        pytest.param(KNOWN_JOBS, 20 * 60.0, "anytime", id="goes last when the clock does not either"),
        pytest.param(replace(KNOWN_JOBS, by_clock=False), 29 * 60.0, "anytime", id="goes last if told so"),
    ],
)
def test_a_job_of_21_minutes_whose_deadline_no_whole_leases_can_meet(
    policy: UniSched, by_s: float, first: str
) -> None:
    snapshot = seen(due("short", 8, by_s), BEST_EFFORT, cluster=a_cluster(8), left_s={"short": 21 * 60.0})
    assert served(policy, snapshot) == {first}


def test_idle_gpus_go_to_jobs_ahead_of_their_plan() -> None:
    assert served(KNOWN_JOBS, seen(SLACK, cluster=a_cluster(8))) == {"patient"}


def test_who_missed_its_last_deadline_is_a_best_effort_job() -> None:
    missed = due("missed", 8, by_s=100.0)
    snapshot = seen(missed, SLACK, cluster=a_cluster(8), now_s=300.0, left_s={"missed": 60.0})
    assert served(KNOWN_JOBS, snapshot) == {"missed"}


def test_best_effort_goes_by_minutes_left_per_gpu() -> None:
    jobs = [rigid("long", 4), rigid("wide", 8), rigid("short", 4), rigid("shorter", 4)]
    left_s = {"long": 3_000.0, "wide": 1_500.0, "short": 2_000.0, "shorter": 1_000.0}
    assert served(KNOWN_JOBS, seen(*jobs, cluster=a_cluster(8), left_s=left_s)) == {"short", "shorter"}


def test_a_profiling_run_comes_before_any_best_effort_job() -> None:
    jobs = [rigid("new", 1), rigid("nearly done", 8)]
    snapshot = seen(*jobs, cluster=a_cluster(8), left_s={"nearly done": 1.0}, profiled_s=0.0)
    progress = replace(snapshot.jobs.progress, profiled_s=np.array([300.0, 0.0]))  # by name: nearly done, new
    snapshot = replace(snapshot, jobs=replace(snapshot.jobs, known_progress=progress))
    assert served(UniSched(), snapshot) == {"new"}


def test_the_value_of_best_effort_is_below_that_of_a_profiling_run() -> None:
    value = best_effort_value(np.array([0.0, 30.0, 600.0]), np.zeros(3), TICK_S)
    assert value.tolist() == pytest.approx([1 / 1.01, 1 / 1.01, 0.1])


def test_expected_suspensions_make_a_best_effort_job_worth_less() -> None:
    plain, stopped = (best_effort_value(np.array([600.0]), np.array([s]), TICK_S)[0] for s in (0.0, 60.0))
    assert stopped == pytest.approx(60.0 / 660.0)
    assert stopped < plain


def test_a_lease_of_a_job_with_a_deadline_lasts_through_the_tick_between() -> None:
    cluster = a_cluster(8)
    first = seen(SLACK, cluster=cluster)
    memory = decide(KNOWN_JOBS, first).memory
    held = {"patient": grant(0, n0=8)}
    between = seen(SLACK, BEST_EFFORT, cluster=cluster, now_s=TICK_S, held=held, memory=memory)
    shares = decide(KNOWN_JOBS, between)
    assert given(between, shares) == {"patient": 8}
    assert not shares.pinned  # it keeps its cells
    cycle = seen(SLACK, BEST_EFFORT, cluster=cluster, now_s=LEASE_S, held=held, memory=shares.memory)
    assert served(KNOWN_JOBS, cycle) == {"anytime"}


@pytest.mark.parametrize("late_s", [0.0, 5.0])
def test_a_cycle_that_began_late_is_over_at_the_tick_that_is_on_time(late_s: float) -> None:
    cluster = a_cluster(8)
    memory = decide(KNOWN_JOBS, seen(SLACK, cluster=cluster, now_s=late_s)).memory
    held = {"patient": grant(0, n0=8)}
    cycle = seen(SLACK, BEST_EFFORT, cluster=cluster, now_s=LEASE_S, held=held, memory=memory)
    assert served(KNOWN_JOBS, cycle) == {"anytime"}


def test_a_newcomer_with_a_deadline_uses_idle_gpus_until_the_next_cycle() -> None:
    cluster = a_cluster(8, 8)
    memory = decide(KNOWN_JOBS, seen(SLACK, cluster=cluster)).memory
    later = due("later", 8, by_s=9_000.0, at_s=10.0)
    between = seen(
        SLACK, later, cluster=cluster, now_s=TICK_S, held={"patient": grant(0, n0=8)}, memory=memory
    )
    assert served(KNOWN_JOBS, between) == {"patient", "later"}


FOUR_OF_SIX = [due(f"six-{index}", 6, by_s=6 * LEASE_S) for index in range(4)]


def test_four_jobs_of_six_gpus_share_three_nodes() -> None:
    """The paper's example of joint optimisation (section II-B)."""
    cluster = a_cluster(8, 8, 8)
    assert len(served(KNOWN_JOBS, seen(*FOUR_OF_SIX, cluster=cluster))) == 4
    assert len(served(replace(KNOWN_JOBS, joint=False), seen(*FOUR_OF_SIX, cluster=cluster))) == 3


def test_a_spread_job_is_accepted_only_where_its_slower_pace_meets_the_deadline() -> None:
    slow_links = MeasuredSpeeds(
        np.array([[np.nan, 1.0, 2.0] + [np.nan] * 6]), np.array([[np.nan, 1.0, 1.0] + [np.nan] * 6])
    )
    snapshot = seen(*FOUR_OF_SIX, cluster=a_cluster(8, 8, 8), table=slow_links)
    shares = decide(KNOWN_JOBS, snapshot)
    assert int(shares.memory.accepted.sum()) == 3


def test_the_plan_says_how_far_it_may_be_from_the_best() -> None:
    snapshot = seen(*FOUR_OF_SIX, cluster=a_cluster(8, 8))
    shares = decide(KNOWN_JOBS, snapshot)
    assert shares.gap is not None
    assert 0.0 <= shares.gap < 1.0
    again = decide(
        KNOWN_JOBS, seen(*FOUR_OF_SIX, cluster=a_cluster(8, 8), now_s=TICK_S, memory=shares.memory)
    )
    assert again.gap == shares.gap


def test_the_most_reward_is_chosen_and_arrival_only_without_an_objective() -> None:
    jobs = [due("first", 8, 6 * LEASE_S, value=1.0), due("worth more", 8, 6 * LEASE_S, at_s=1.0)]
    snapshot = seen(*jobs, cluster=a_cluster(8))
    assert served(KNOWN_JOBS, snapshot) == {"worth more"}
    assert served(replace(KNOWN_JOBS, objective=False), snapshot) == {"first"}


def test_a_static_profiler_uses_its_nodes_and_nobody_else_does() -> None:
    policy = UniSched(profiling=Profiling.STATIC, profile_nodes=1)
    new = [rigid(f"new-{index}", 2, at_s=float(index)) for index in range(5)]
    cluster = a_cluster(8, 8)
    snapshot = seen(*new, cluster=cluster)
    shares = decide(policy, snapshot)
    assert given(snapshot, shares) == {f"new-{index}": 2 for index in range(4)}
    assert {node for pin in shares.pinned.values() for node in pin.nodes} == {0}
    assert shares.why.of(4) is Why.NOT_PROFILED
    old = seen(rigid("old", 8), rigid("older", 8), cluster=cluster, profiled_s=300.0)
    shares = decide(policy, old)
    assert [pin.nodes for pin in shares.pinned.values()] == [(1,)]


def test_who_is_suspended_counts_on_resuming() -> None:
    """Its deadline can be met only if coming back costs nothing."""
    tight = due("tight", 8, by_s=6 * LEASE_S)
    snapshot = seen(tight, cluster=a_cluster(8), executed_s=np.array([900.0]))
    assert not decide(KNOWN_JOBS, snapshot).memory.accepted.any()
    assert decide(replace(KNOWN_JOBS, suspensions=False), snapshot).memory.accepted.any()


def with_a_goal(epochs_done: int, most: int = 100) -> Snapshot:
    """A job whose curve reaches its goal at epoch 40; a minute an epoch so far."""
    epochs = np.arange(1, most + 1)
    curve = 0.9 - 0.8 / np.sqrt(epochs)
    job = rigid("learns", goal=Goal(float(curve[39]), most))
    done_s = 60.0 * epochs_done
    snapshot = seen(job, cluster=a_cluster(8), left_s={"learns": 7_200.0 - done_s}, profiled_s=300.0)
    learning = Learning(
        samples=np.array([1_000.0 * epochs_done]),
        dataset_samples=np.array([1_000.0]),
        initial_loss=np.array([2.3]),
        loss=np.array([1.0]),
        metric=curve[epochs_done - 1 : epochs_done],
        history=[curve[:epochs_done]],
    )
    return replace(snapshot, jobs=replace(snapshot.jobs, known_learning=learning))


@pytest.mark.parametrize(("measured_s", "accepted"), [(np.nan, True), (40.0, True), (60.0, False)])
def test_what_a_resumption_was_measured_to_cost_counts(measured_s: float, accepted: bool) -> None:
    """50 seconds are to spare; until something is measured, 20 are assumed."""
    snapshot = seen(
        due("suspended", 1, by_s=2 * LEASE_S),
        cluster=a_cluster(8),
        left_s={"suspended": 2 * LEASE_S - 50.0},
        executed_s=np.array([HOUR_S]),
        suspension_s=np.array([measured_s]),
    )
    assert decide(KNOWN_JOBS, snapshot).memory.accepted.any() == accepted


def test_a_job_with_a_goal_is_estimated_from_its_curve() -> None:
    left_s, fits = remaining_s(with_a_goal(20).jobs, True, Fits())
    assert left_s[0] == pytest.approx(20 * 60.0, rel=0.15)
    assert fits.ids == (JobId("learns"),)
    assert fits.seen == (20,)


def test_without_an_iteration_estimator_the_owners_maximum_counts() -> None:
    left_s, _ = remaining_s(with_a_goal(20).jobs, False, Fits())
    assert left_s[0] == pytest.approx(80 * 60.0)


def test_a_curve_is_fitted_again_once_it_has_grown_by_a_fifth() -> None:
    believed = Fits((JobId("learns"),), (20,), (33,))
    left_s, fits = remaining_s(with_a_goal(20).jobs, True, believed)
    assert left_s[0] == pytest.approx(13 * 60.0)
    assert (fits.seen, fits.needed) == (believed.seen, believed.needed)
    assert remaining_s(with_a_goal(23).jobs, True, believed)[1].seen == (20,)
    _, fits = remaining_s(with_a_goal(24).jobs, True, believed)
    assert fits.seen == (24,)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"deadline_lease_s": 500.0}, "multiple"),
        ({"best_effort_lease_s": 0.0}, "best_effort_lease_s"),
        ({"max_nodes": -1}, "max_nodes"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        UniSched(**settings)


def test_in_a_simulation_deadlines_that_fit_are_met_and_everybody_is_profiled_first() -> None:
    """Four nodes, a deadline every ten minutes with room for it, and best effort in between."""
    jobs, truths = [], []
    for index in range(40):
        at_s = 450.0 * index
        rewards = (Reward(at_s + 5_400.0, 100.0),) if index % 2 else ()
        jobs.append(rigid(f"job-{index:02d}", (1, 2, 6, 8)[index // 2 % 4], at_s, rewards=rewards))
        truths.append(Truth(duration_s=1_500.0 + 60.0 * (index % 7)))
    workload = Workload("made", tuple(jobs), tuple(truths))
    plans: list[Plan] = []
    setup = Setup(a_cluster(8, 8, 8, 8), UniSched(), SimSettings(restart_s=20.0))
    result = simulate(workload, setup, record=lambda _, plan: plans.append(plan))
    by_s = np.array([job.deadline_s for job in result.requests.jobs])
    assert (result.completed_s <= by_s).all()
    assert max(plan.gap or 0.0 for plan in plans) == 0.0
    first = [
        allocation
        for plan in plans
        for action in plan.actions
        if action.before is None and (allocation := action.after) is not None and action.job == "job-07"
    ]
    assert first[0].profiling
    assert first[0].gpus == 2
    assert not any(allocation.profiling for allocation in first[1:])


@pytest.mark.data
def test_six_hours_of_philly_are_planned_with_a_gap_of_less_than_a_hundredth() -> None:
    data = Path(os.environ.get("STRETTO_DATA", Path(__file__).parents[2] / "../shared/data"))
    if not (data / "chronus").is_dir():
        pytest.skip(f"the data set chronus is not below {data}")
    gaps: list[float] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STRETTO_DATA", str(data))
        spec = RunSpec(cluster="gpu8-256", trace="chronus-mix2", policy="unisched", window=0.02)
        run_spec(spec, record=lambda _, plan: gaps.append(plan.gap or 0.0))
    assert max(gaps) < 0.01
