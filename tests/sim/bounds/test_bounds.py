"""Bounds of a workload: no policy passes them, no schedule of tiny cases does, and they are not idle."""

from collections.abc import Sequence
from itertools import product
from math import inf, isnan
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.sim.test_nobody_starves import CLUSTERS, ON_TWO_TYPES, workloads

from stretto.catalogue import read_catalogue
from stretto.model import Adaptivity, Cluster, GpuType, Job, JobId, Kind, Reward, cluster_of
from stretto.policies import load_policy
from stretto.sim.bounds import bounds_of
from stretto.sim.bounds.needs import part_seconds
from stretto.sim.result import Bounds
from stretto.sim.run import Setup, simulate
from stretto.sim.settings import Batches, SimSettings
from stretto.sim.setup import truth_of
from stretto.sim.truth.training import TrainingRun
from stretto.traces.workload import Truth, Workload, reach_of

ROUNDING = 1 + 1e-9
POLICIES = ("stretto", "srtf", "afs", "unisched", "cornucopia", "lyra")


def recorded(jobs: Sequence[Job], seconds: Sequence[float]) -> Workload:
    """A workload of jobs that run so long on what they ask for."""
    return Workload("made", jobs, [Truth(duration_s=each) for each in seconds])


def bounds(workload: Workload, cluster: Cluster, **settings: Any) -> Bounds:
    """In a world where nothing but running takes time."""
    return bounds_of(workload, Setup(cluster, load_policy("fifo"), SimSettings(restart_s=0.0, **settings)))


def one(number: int, gpus: int = 1, at_s: float = 0.0, **more: object) -> Job:
    """A rigid job, if it is not told otherwise."""
    return Job(JobId(f"j{number}"), at_s, gpus, **{"adaptivity": Adaptivity.RIGID, **more})  # type: ignore[arg-type]


# ── against policies ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.heavy
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.long if name in ("afs", "cornucopia") else ())
        for name in POLICIES
    ],
)
@settings(max_examples=12, deadline=None)
@given(workload=workloads(), cluster=st.sampled_from(CLUSTERS))
@example(workload=ON_TWO_TYPES, cluster=CLUSTERS[1])
def test_no_policy_passes_a_bound(name: str, workload: Workload, cluster: Cluster) -> None:
    setup = Setup(cluster, load_policy(name), SimSettings())
    told = simulate(workload, setup).summary()
    least = bounds_of(workload, setup)
    for key in ("avg_jct_s", "interactive_avg_queue_s", "deadline_miss_rate", "weighted_deadline_miss_rate"):
        bound = getattr(least, key)
        assert isnan(bound) == (told[key] is None), key
        assert isnan(bound) or bound <= told[key] * ROUNDING + 1e-6, key


@pytest.mark.heavy
@pytest.mark.parametrize("batches", Batches)
@pytest.mark.parametrize(
    "policy", ["sia", "stretto", *(pytest.param(one, marks=pytest.mark.long) for one in ("pollux", "ones"))]
)
def test_no_policy_passes_the_bound_of_trainings(policy: str, batches: Batches) -> None:
    cluster = cluster_of("two", (GpuType("v100"), 2, 4), (GpuType("t4"), 2, 4))
    names = [name for name in known_models() for _ in range(3)][:12]
    jobs = [Job(JobId(f"j{number:02}"), 200.0 * number, 1, model=name) for number, name in enumerate(names)]
    workload = Workload("made", jobs, [Truth()] * len(jobs))
    setup = Setup(cluster, load_policy(policy), SimSettings(batches=batches, resize_s=0.0))
    least = bounds_of(workload, setup)
    mean_s = simulate(workload, setup).summary()["avg_jct_s"]
    assert mean_s / 5 < least.avg_jct_s <= mean_s


def known_models() -> list[str]:
    """Of the catalogue, those that run on both types."""
    return [model.name for model in read_catalogue().values() if {"v100", "t4"} <= {*model.gpu_types}]


# ── against all schedules of tiny cases ───────────────────────────────────────────────────────────


def best_by_hand(jobs: Sequence[Job], seconds: Sequence[float], gpus: int) -> float:
    """Least mean JCT over all ways to divide GPUs anew whenever a job comes or ends.

    Jobs are as fast as they have GPUs in their range, and may be stopped.
    """
    arrivals = sorted({job.submitted_s for job in jobs})
    sizes = [[0, *range(job.min_gpus, min(job.max_gpus, gpus) + 1)] for job in jobs]

    def least(now_s: float, left: tuple[float, ...]) -> float:
        there = [row for row, job in enumerate(jobs) if left[row] > 1e-9 and job.submitted_s <= now_s]
        next_s = min((each for each in arrivals if each > now_s), default=inf)
        if not there:
            return least(next_s, left) if next_s < inf else 0.0
        best_s = inf
        for shares in product(*(sizes[row] for row in there)):
            if not 0 < sum(shares) <= gpus:
                continue
            ends_s = min(now_s + left[row] / share for row, share in zip(there, shares, strict=True) if share)
            until_s = min(ends_s, next_s)
            after = list(left)
            for row, share in zip(there, shares, strict=True):
                after[row] -= share * (until_s - now_s)
            ended = sum(until_s - jobs[row].submitted_s for row in there if after[row] <= 1e-9)
            best_s = min(best_s, ended + least(until_s, tuple(after)))
        return best_s

    work = tuple(each * job.gpus for job, each in zip(jobs, seconds, strict=True))
    return least(0.0, work) / len(jobs)


@settings(max_examples=60, deadline=None)
@given(
    drawn=st.lists(
        st.tuples(st.integers(0, 6), st.integers(1, 3), st.integers(1, 2), st.integers(1, 9)),
        min_size=1,
        max_size=3,
    ),
    gpus=st.integers(2, 3),
)
def test_no_schedule_of_a_tiny_case_passes_the_bound(
    drawn: list[tuple[int, int, int, int]], gpus: int
) -> None:
    jobs = [
        one(number, min(least, gpus), float(at_s), max_gpus=min(least + more, gpus), min_gpus=1,
            adaptivity=Adaptivity.STRONG_SCALING)
        for number, (at_s, least, more, _) in enumerate(sorted(drawn))
    ]  # fmt: skip
    seconds = [float(each) for *_, each in sorted(drawn)]
    best_s = best_by_hand(jobs, seconds, gpus)
    bound_s = bounds(recorded(jobs, seconds), cluster_of("tiny", (GpuType("only"), 1, gpus))).avg_jct_s
    assert 0.6 * best_s <= bound_s <= best_s * ROUNDING


# ── figures known beforehand ──────────────────────────────────────────────────────────────────────


def test_a_job_alone_takes_its_least_time() -> None:
    elastic = one(1, 2, 50.0, min_gpus=1, max_gpus=8, adaptivity=Adaptivity.STRONG_SCALING)
    cluster = cluster_of("two", (GpuType("fast", speed=2.0), 1, 4), (GpuType("slow"), 2, 4))
    # 120 s on two GPUs are 60 s on four, of which each is twice as fast.
    assert bounds(recorded([elastic], [120.0]), cluster).avg_jct_s == pytest.approx(30.0)
    assert bounds(recorded([one(1, 2)], [120.0]), cluster).avg_jct_s == pytest.approx(60.0)


def test_jobs_that_all_need_the_whole_cluster_run_one_after_the_other() -> None:
    cluster = cluster_of("one", (GpuType("only"), 1, 4))
    jobs = [one(number, 4) for number in range(5)]
    assert bounds(recorded(jobs, [10.0] * 5), cluster).avg_jct_s == pytest.approx(30.0)


def test_prices_over_time_tell_a_crowd_from_quiet_hours() -> None:
    """Twenty jobs at once and twenty in a quiet time: the crowd alone has to wait, whatever its mean."""
    cluster = cluster_of("one", (GpuType("only"), 1, 4))
    crowd = [one(number, 2) for number in range(20)]
    quiet = [one(20 + number, 2, 4_000.0 + 400.0 * number) for number in range(20)]
    bound_s = bounds(recorded([*crowd, *quiet], [100.0] * 40), cluster).avg_jct_s
    # Pairs of the crowd end after 100, 200, ... 1,000 s: 550 s in the mean. The others take 100 s.
    assert 0.9 * (550.0 + 100.0) / 2 < bound_s <= (550.0 + 100.0) / 2


def test_who_sits_and_waits_waits_where_there_are_too_few_gpus() -> None:
    cluster = cluster_of("one", (GpuType("only"), 1, 2))
    sessions = [one(number, kind=Kind.INTERACTIVE) for number in range(4)]
    least = bounds(recorded([*sessions, one(9)], [100.0] * 5), cluster)
    # Two of them wait for 100 s. The bound takes two GPUs for one of twice their speed.
    assert 20.0 < least.interactive_avg_queue_s <= 50.0
    assert bounds(recorded([*sessions[:2], one(9)], [100.0] * 3), cluster).interactive_avg_queue_s == 0.0
    assert isnan(bounds(recorded([one(9)], [100.0]), cluster).interactive_avg_queue_s)


def test_deadlines_that_cannot_all_be_kept() -> None:
    cluster = cluster_of("one", (GpuType("only"), 1, 1))
    due = [one(number, rewards=(Reward(100.0, 5.0), Reward(250.0, 2.0))) for number in range(2)]
    least = bounds(recorded(due, [100.0] * 2), cluster)
    assert least.deadline_miss_rate == pytest.approx(0.5)
    assert least.weighted_deadline_miss_rate == pytest.approx(1 - (1 + 0.4) / 2)
    assert isnan(bounds(recorded([one(9)], [100.0]), cluster).deadline_miss_rate)


def test_what_a_first_start_takes_counts() -> None:
    cluster = cluster_of("one", (GpuType("v100"), 1, 4))
    job = Job(JobId("j"), 0.0, 1, model=known_models()[0])
    workload = Workload("made", [job], [Truth()])
    assert bounds(workload, cluster, start_s=100.0).avg_jct_s == pytest.approx(
        bounds(workload, cluster, start_s=0.0).avg_jct_s + 100.0
    )


# ── what jobs need ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.heavy
@pytest.mark.parametrize("nodes", [(3, 2), (60, 20)], ids=["few", "many"])
def test_no_batch_and_no_placement_is_faster_than_what_was_tried(nodes: tuple[int, int]) -> None:
    cluster = cluster_of("two", (GpuType("v100"), nodes[0], 4), (GpuType("t4"), nodes[1], 4))
    generator = np.random.default_rng(7)
    for model in known_models()[: 12 // min(nodes[0], 6)]:
        settings_of_world = SimSettings()
        truth = truth_of(Job(JobId("j"), 0.0, 1, model=model), cluster, settings_of_world, None)
        seconds = part_seconds(truth, 0, cluster, settings_of_world)
        for _ in range(300):
            kind = int(generator.choice(np.flatnonzero(truth.limits.max_local > 0)))
            shape = tuple(generator.integers(1, 5, generator.integers(1, nodes[1] + 1)).tolist())
            run = TrainingRun(truth, truth.limits, 0, settings_of_world, kind=kind, shape=shape)
            most = int(truth.limits.max_batch) // sum(shape)
            if most < 1 or sum(shape) > reach_of(cluster)[kind]:
                continue
            each = int(np.exp(generator.uniform(0, np.log(most))))
            run.accumulation = -(-each // int(truth.limits.max_local[kind])) - 1
            run.local_batch = each // (run.accumulation + 1)
            run.epoch = int(generator.integers(len(truth.epoch_ends)))
            run.progress = (0.0, *truth.epoch_ends)[run.epoch]
            assert seconds[kind, sum(shape), run.epoch] <= run.next_epoch_s()


# ── where there is next to nothing ────────────────────────────────────────────────────────────────


def test_jobs_that_end_as_they_come_wait_for_nothing() -> None:
    least = bounds(recorded([one(1)], [0.0]), CLUSTERS[0])
    assert least.avg_jct_s == pytest.approx(0.0, abs=1e-6)


def test_a_deadline_that_is_worth_nothing_has_no_weight() -> None:
    due = (Reward(500.0, 0.0),)
    least = bounds(recorded([one(1, rewards=due), one(2)], [1_000.0, 10.0]), CLUSTERS[0])
    assert least.avg_jct_s > 0
    assert isnan(least.weighted_deadline_miss_rate) or least.weighted_deadline_miss_rate == 0
