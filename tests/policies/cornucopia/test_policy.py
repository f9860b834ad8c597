import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drawn import scaled

from stretto.model import (
    Adaptivity,
    Allocation,
    EndedJobs,
    InputError,
    Job,
    JobId,
    Kind,
    MeasuredSpeeds,
    Requests,
    Shares,
    Snapshot,
    cluster_of,
    digest,
    no_speeds,
)
from stretto.model.cluster import GpuType
from stretto.policies import load_policy
from stretto.policies.common.admission import NO_CONFIGURATIONS
from stretto.policies.cornucopia.mlfq import BATCH, INTERACTIVE, LONG, Means, Remembered, thresholds_of
from stretto.policies.cornucopia.policy import Cornucopia, MeansFrom, Profile
from stretto.testing.builders import a_cluster, a_job, a_snapshot, grant, some_progress
from stretto.testing.situations import Situation, situations

POLICY = Cornucopia(interactive_mean_s=300.0, rttf_s=1_000.0, batch_mean_s=5_000.0)
CLUSTER = a_cluster(8)
KINDS = {"i": Kind.INTERACTIVE, "b": Kind.BATCH}


def job(name: str, gpus: int = 1, at_s: float = 0.0, **rest: Any) -> Job:
    """Interactive where the name begins with i; elastic from 1 to 2R GPUs."""
    blank: dict[str, Any] = {"max_gpus": 2 * gpus, "adaptivity": Adaptivity.STRONG_SCALING}
    return a_job(name, gpus, at_s, kind=KINDS[name[0]], **(blank | rest))


def linear(jobs: int, types: int = 1) -> list[MeasuredSpeeds]:
    per_s = np.tile(np.arange(65.0), (types, 1))
    return [MeasuredSpeeds(per_s, per_s)] * jobs


def at(now_s: float, *jobs: Job, held: dict[str, Allocation] | None = None, **rest: Any) -> Snapshot:
    progress = some_progress(len(jobs), **rest.pop("progress", {}))
    cluster = rest.pop("cluster", CLUSTER)
    return a_snapshot(
        *jobs,
        cluster=cluster,
        allocations=held,
        now_s=now_s,
        known_progress=progress,
        known_tables=linear(len(jobs), len(cluster.types)),
        known_ended=rest.pop("ended", EndedJobs()),
        **rest,
    )


def decided(snapshot: Snapshot, policy: Cornucopia = POLICY) -> Shares:
    speeds = no_speeds(len(snapshot.jobs), len(snapshot.cluster.types), NO_CONFIGURATIONS)
    return policy.allocate(snapshot, speeds)


def queues(shares: Shares) -> list[int]:
    assert isinstance(shares.memory, Remembered)
    return [int(queue) for queue in shares.memory.queue]


def test_queue_thresholds_are_twice_the_mean_durations() -> None:
    at_means = thresholds_of(300.0, 1_000.0, 5_000.0)
    assert (at_means.interactive_s, at_means.batch_s, at_means.starved_s) == (600.0, 2_000.0, 10_000.0)


def test_interactive_jobs_come_to_the_first_queue_and_batch_jobs_to_the_second() -> None:
    assert queues(decided(at(0.0, job("b"), job("i")))) == [BATCH, INTERACTIVE]


def test_an_interactive_job_starts_at_once_on_part_of_a_batch_job() -> None:
    snapshot = at(10.0, job("b", 8), job("i", 2, 10.0), held={"b": grant(0, n0=8)})
    shares = decided(snapshot)
    assert shares.gpus.tolist() == [6, 2]


def ran(executed_s: float, *, name: str = "b", before: int, entered_s: float = 0.0) -> list[int]:
    memory = Remembered(
        thresholds_of(300.0, 1_000.0, 5_000.0),
        ids=(JobId(name),),
        queue=np.array([before], dtype=np.int8),
        entered_s=np.array([entered_s]),
        joined_s=np.zeros(1),
        profiled_upto=np.zeros(1, dtype=np.int64),
    )
    held = {name: grant(0, n0=1)}
    snapshot = at(9e5, job(name), held=held, progress={"executed_s": [executed_s]}, memory=memory)
    return queues(decided(snapshot))


@pytest.mark.parametrize(
    ("executed_s", "name", "before", "entered_s", "after"),
    [
        (599.0, "i", INTERACTIVE, 0.0, INTERACTIVE),
        (600.0, "i", INTERACTIVE, 0.0, BATCH),
        (1_999.0, "b", BATCH, 0.0, BATCH),
        (2_000.0, "b", BATCH, 0.0, LONG),
        (2_000.0, "i", BATCH, 600.0, BATCH),
        (2_600.0, "i", BATCH, 600.0, LONG),
        (9e5, "b", LONG, 0.0, LONG),
        (9_000.0, "i", INTERACTIVE, 0.0, BATCH),
    ],
)
def test_executed_time_in_a_queue_demotes(
    executed_s: float, name: str, before: int, entered_s: float, after: int
) -> None:
    assert ran(executed_s, name=name, before=before, entered_s=entered_s) == [after]


def starving(since_s: float, now_s: float, executed_s: float = 2_000.0) -> Shares:
    """A long job that lost its last GPU beside one that holds all eight."""
    memory = Remembered(
        thresholds_of(300.0, 1_000.0, 5_000.0),
        ids=(JobId("ba"), JobId("bz")),
        queue=np.array([LONG, LONG], dtype=np.int8),
        entered_s=np.zeros(2),
        joined_s=np.zeros(2),
        profiled_upto=np.zeros(2, dtype=np.int64),
    )
    progress = {"executed_s": [2_000.0, executed_s], "last_stop_s": [np.nan, since_s]}
    held = {"ba": grant(0, n0=8)}
    return decided(at(now_s, job("ba", 8), job("bz", 1), held=held, progress=progress, memory=memory))


def test_a_job_of_the_last_queue_is_promoted_once_it_has_starved_for_twice_the_mean_batch_duration() -> None:
    assert queues(starving(100.0, 10_099.0)) == [LONG, LONG]
    promoted = starving(100.0, 10_100.0)
    assert queues(promoted) == [LONG, BATCH]
    assert promoted.gpus.tolist() == [7, 1]


def test_a_promoted_job_is_not_demoted_at_once() -> None:
    promoted = starving(100.0, 10_100.0, executed_s=50_000.0)
    held = {"ba": grant(0, n0=7), "bz": Allocation(0, (0,), (1 << 7,))}
    progress = {"executed_s": [2_100.0, 50_100.0], "last_stop_s": [np.nan, 100.0]}
    later = at(10_200.0, job("ba", 8), job("bz"), held=held, progress=progress, memory=promoted.memory)
    assert queues(decided(later)) == [LONG, BATCH]


def test_a_promoted_job_comes_behind_who_has_waited_longer_in_queue_two() -> None:
    memory = Remembered(
        thresholds_of(300.0, 1_000.0, 5_000.0),
        ids=(JobId("ba"), JobId("bb"), JobId("bc")),
        queue=np.array([LONG, BATCH, BATCH], dtype=np.int8),
        entered_s=np.zeros(3),
        joined_s=np.array([2_000.0, 3_000.0, 4_000.0]),
        profiled_upto=np.zeros(3, dtype=np.int64),
    )
    progress = {"executed_s": [2_000.0, 0.0, 10.0], "last_stop_s": [100.0, np.nan, np.nan]}
    jobs = [job("ba"), job("bb", at_s=3_000.0), job("bc", 7, at_s=4_000.0)]
    held = {"bc": grant(0, n0=7)}
    shares = decided(at(10_100.0, *jobs, held=held, progress=progress, memory=memory))
    assert queues(shares) == [BATCH, BATCH, BATCH]
    assert shares.gpus.tolist() == [0, 1, 7]


def test_it_wakes_when_the_next_job_crosses_a_threshold() -> None:
    both = at(50.0, job("b", at_s=50.0), job("i", at_s=50.0))
    assert decided(both).wake_s == pytest.approx(650.0)
    assert decided(at(50.0, job("b", at_s=50.0))).wake_s == pytest.approx(2_050.0)
    assert starving(100.0, 500.0).wake_s == pytest.approx(10_100.0)


def learned(*ended: EndedJobs, policy: Cornucopia = POLICY) -> tuple[float, float, float]:
    """Thresholds after decisions at which so many jobs had ended."""
    memory = None
    for number, so_far in enumerate(ended):
        memory = decided(at(float(number), job("b"), ended=so_far, memory=memory), policy).memory
    assert isinstance(memory, Remembered)
    thresholds = memory.thresholds
    return thresholds.interactive_s, thresholds.batch_s, thresholds.starved_s


SOME = EndedJobs(
    interactive=20, interactive_s=20 * 40.0, batch=30, batch_s=30 * 700.0, failed=10, failed_s=10 * 90.0
)


def test_thresholds_are_learned_from_the_jobs_that_have_ended() -> None:
    assert learned(EndedJobs()) == (600.0, 2_000.0, 10_000.0)
    assert learned(SOME) == pytest.approx((80.0, 180.0, 1_400.0))
    assert learned(SOME, policy=replace(POLICY, learn_every=0)) == (600.0, 2_000.0, 10_000.0)


def test_the_demotion_of_batch_jobs_may_follow_the_time_to_failure_once_as_well_as_twice() -> None:
    assert learned(SOME, policy=replace(POLICY, rttf_factor=1.0)) == pytest.approx((80.0, 90.0, 1_400.0))


def test_a_mean_of_few_jobs_is_not_believed() -> None:
    few = replace(SOME, interactive=9, batch=9, failed=9)
    every = (20 * 40.0 + 30 * 700.0) / 18
    assert learned(few) == pytest.approx((600.0, 2 * every, 10_000.0))
    assert learned(replace(few, interactive=1, batch=8)) == (600.0, 2_000.0, 10_000.0)


def test_where_nothing_fails_the_mean_of_all_jobs_stands_in_for_the_time_to_failure() -> None:
    every = (20 * 40.0 + 30 * 700.0) / 50
    assert learned(replace(SOME, failed=0, failed_s=0.0))[1] == pytest.approx(2 * every)


def batches(count: int, mean_s: float) -> EndedJobs:
    return EndedJobs(batch=count, batch_s=count * mean_s)


@pytest.mark.parametrize(
    ("before", "now", "renewed"),
    [(20, 39, False), (20, 40, True), (999, 1_000, True), (1_000, 1_999, False), (1_000, 2_000, True)],
)
def test_thresholds_are_renewed_every_thousand_jobs_and_before_that_whenever_they_have_doubled(
    before: int, now: int, renewed: bool
) -> None:
    starved_s = learned(batches(before, 100.0), batches(now, 900.0))[2]
    assert starved_s == pytest.approx(1_800.0 if renewed else 200.0)


def test_people_are_told_the_queue_of_a_job_and_what_takes_it_to_another() -> None:
    memory = decided(at(0.0, job("b"), job("i"), ended=SOME)).memory
    told = [POLICY.standing(memory, JobId(name)) for name in ("i", "b", "gone")]
    assert told == [
        "queue 1 of 3, for interactive jobs, down after 80 s of running there, as learned from 50 ended jobs",
        "queue 2 of 3, for batch jobs, down after 180 s of running there, as learned from 50 ended jobs",
        "",
    ]
    assert POLICY.standing(None, JobId("b")) == ""
    assert POLICY.standing(starving(100.0, 500.0).memory, JobId("bz")) == (
        "queue 3 of 3, for long jobs, up after 10000 s without GPUs, as set"
    )


def test_a_snapshot_alone_repeats_a_decision_that_learns() -> None:
    snapshot = at(0.0, job("b"), job("i"), ended=SOME)
    assert digest(decided(snapshot).memory) == digest(decided(pickle.loads(pickle.dumps(snapshot))).memory)
    assert digest(decided(snapshot).memory) != digest(decided(at(0.0, job("b"), job("i"))).memory)


def ended(policy: Cornucopia, count: int, executed_s: float) -> Remembered:
    """What is remembered once so many interactive jobs have ended together."""
    jobs = [job(f"i{number:04}") for number in range(count)]
    cluster = a_cluster(*[8] * (count // 8 + 1))
    everybody = at(0.0, *jobs, job("b"), cluster=cluster)
    running = decided(everybody, policy)
    last = replace(everybody.jobs, rows=everybody.jobs.rows[:1], **_first_row(everybody))
    after = decided(replace(everybody, now_s=executed_s, jobs=last, memory=running.memory), policy).memory
    assert isinstance(after, Remembered)
    return after


def _first_row(snapshot: Snapshot) -> dict[str, Any]:
    jobs = snapshot.jobs
    columns = {name: getattr(jobs, name)[:1] for name in ("held_gpus", "held_nodes", "held_kind")}
    return columns | {"known_progress": some_progress(1), "known_tables": linear(1)}


FOLLOWS = replace(POLICY, means_from=MeansFrom.FOLLOWED)


def test_former_logs_learned_from_the_jobs_that_the_policy_had_followed() -> None:
    assert Cornucopia.traits.former == {"means_from": "followed"}
    policy = replace(FOLLOWS, learn_every=10)
    few, enough = ended(policy, 9, 40.0), ended(policy, 10, 40.0)
    assert few.means == Means(interactive=9, interactive_s=360.0)
    assert few.thresholds.interactive_s == 600.0
    assert enough.thresholds.interactive_s == pytest.approx(80.0)
    assert enough.thresholds.starved_s == 10_000.0  # no batch job has ended yet
    assert ended(replace(FOLLOWS, learn_every=0), 10, 40.0).thresholds.interactive_s == 600.0


def test_when_the_last_job_has_ended_and_a_node_goes_there_is_nobody_to_decide_about() -> None:
    before = at(0.0, job("i"))
    columns = {
        name: getattr(before.jobs, name)[:0] for name in ("rows", "held_gpus", "held_nodes", "held_kind")
    }
    nobody = replace(before.jobs, **columns, known_progress=some_progress(0), known_tables=[])
    memory = decided(before, FOLLOWS).memory
    shares = decided(replace(before, now_s=40.0, jobs=nobody, memory=memory), FOLLOWS)
    assert len(shares.gpus) == 0
    assert isinstance(shares.memory, Remembered)
    assert shares.memory.means == Means(interactive=1, interactive_s=40.0)


RAMP = replace(POLICY, profile=Profile.RAMP, profile_step_s=5.0)


def test_a_job_that_ramps_up_gets_one_gpu_more_whenever_a_count_has_been_measured() -> None:
    snapshot = at(0.0, job("b", 2))
    held = []
    for step in range(6):
        shares = decided(snapshot, RAMP)
        held.append(int(shares.gpus[0]))
        if step < 4:
            assert shares.wake_s == pytest.approx(snapshot.now_s + 5.0)
        progress = {"executed_s": [5.0 * (step + 1)]}
        now = grant(0, n0=held[-1])
        snapshot = at(5.0 * (step + 1), job("b", 2), held={"b": now}, progress=progress, memory=shares.memory)
    assert held == [1, 2, 3, 4, 4, 4]


def test_a_count_that_was_not_held_long_enough_is_not_measured() -> None:
    first = decided(at(0.0, job("b", 2)), RAMP)
    soon = at(4.0, job("b", 2), held={"b": grant(0, n0=1)}, memory=first.memory)
    assert decided(soon, RAMP).gpus.tolist() == [1]


def known_upto(snapshot: Snapshot, count: int) -> Snapshot:
    """Its jobs have been measured on 1 to `count` GPUs."""
    tables = [
        replace(table, measured=np.arange(table.per_s.shape[1])[None, :].repeat(len(table.per_s), 0) <= count)
        for table in snapshot.jobs.tables
    ]
    return replace(snapshot, jobs=replace(snapshot.jobs, known_tables=tables))


def test_where_the_world_measures_a_count_is_profiled_once_it_was_measured() -> None:
    first = decided(known_upto(at(0.0, job("b", 2)), 0), RAMP)
    assert first.gpus.tolist() == [1]
    held, progress = {"b": grant(0, n0=1)}, {"executed_s": [60.0]}
    later = at(60.0, job("b", 2), held=held, progress=progress, memory=first.memory)
    waiting = decided(known_upto(later, 0), RAMP)
    assert (waiting.gpus.tolist(), waiting.wake_s) == ([1], 60.0 + RAMP.notice_s)
    assert decided(known_upto(later, 1), RAMP).gpus.tolist() == [2]
    silent = at(600.0, job("b", 2), held=held, progress={"executed_s": [600.0]}, memory=waiting.memory)
    assert decided(known_upto(silent, 0), RAMP).gpus.tolist() == [2], "it reports nothing"


def test_what_was_measured_of_its_model_is_profiled_of_a_new_job() -> None:
    assert decided(known_upto(at(0.0, job("b", 2)), 3), RAMP).gpus.tolist() == [4]


def test_a_job_stays_on_its_gpu_type_and_one_that_waits_takes_the_emptiest() -> None:
    cluster = cluster_of("two", (GpuType("red"), 1, 4), (GpuType("blue"), 1, 8))
    snapshot = at(0.0, job("ba", 2, gpu_types=("red",)), job("bb", 4), cluster=cluster)
    shares = decided(snapshot)
    assert shares.kind.tolist() == [0, 1]
    assert shares.gpus.tolist() == [4, 8]


def test_parameters_are_set_from_text_and_out_of_range_ones_are_refused() -> None:
    assert load_policy("cornucopia", profile="ramp", rttf_s="60") == Cornucopia(
        profile=Profile.RAMP, rttf_s=60.0
    )
    with pytest.raises(InputError, match=r"policy\.rttf_s must be > 0, got 0"):
        Cornucopia(rttf_s=0.0)
    with pytest.raises(InputError, match="learn_every must be >= 0, got -1"):
        Cornucopia(learn_every=-1)


@settings(max_examples=scaled(60), deadline=None)
@given(situation=situations(), seed=st.integers(0, 99))
def test_interactive_jobs_never_lose_what_they_asked_for_to_anybody(situation: Situation, seed: int) -> None:
    drawn = situation.snapshot
    waited_for = np.random.default_rng(seed).random(len(drawn.jobs)) < 0.5
    kinds = [Kind.INTERACTIVE if one else Kind.BATCH for one in waited_for]
    asked = [replace(one, kind=kind) for one, kind in zip(drawn.jobs.requests.jobs, kinds, strict=True)]
    jobs = replace(drawn.jobs, requests=Requests(asked, drawn.cluster))
    shares = decided(replace(drawn, jobs=jobs))
    first = np.array(queues(shares)) == INTERACTIVE
    assert (shares.gpus[first] >= np.minimum(jobs.held_gpus, jobs.gpus)[first]).all()


def test_what_is_remembered_follows_the_jobs_and_not_their_places() -> None:
    jobs = [job("ba"), job("bb"), job("bc", 2)]
    first = at(0.0, *jobs)
    memory = decided(first, FOLLOWS).memory
    assert isinstance(memory, Remembered)
    marked = replace(memory, queue=np.array([BATCH, LONG, BATCH], dtype=np.int8), joined_s=np.arange(3.0))
    held = {"bb": grant(0, n0=1), "bc": Allocation(0, (0,), (0b110,))}
    progress = {"executed_s": [10.0, 10.0, 0.0]}
    later = at(10.0, *jobs[1:], job("i", at_s=9.0), held=held, progress=progress, memory=marked)
    after = decided(later, FOLLOWS).memory
    assert isinstance(after, Remembered)
    assert after.ids == ("bb", "bc", "i")
    assert after.queue.tolist() == [LONG, BATCH, INTERACTIVE]
    assert after.joined_s.tolist() == [1.0, 2.0, 10.0]
    assert after.means == Means(batch=1, batch_s=10.0)  # who has gone
    assert [after.ids[row] for row in after.runners.rows.tolist()] == ["bb", "bc", "i"]
    assert after.runners.interactive.tolist() == [False, False, True]
