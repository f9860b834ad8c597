"""The made stand-in for Lyra's trace, and the recipe of its scenarios."""

from collections import deque
from dataclasses import replace
from heapq import heappop, heappush
from math import ceil, inf

import numpy as np
import pytest

from stretto.model import Adaptivity, InputError
from stretto.traces import Workload, make_workload
from stretto.traces.lyra import BY_PERCENTILES, CALIBRATED, ELASTIC_MEAN_S, ELASTIC_SHARE, Drawn, draw
from stretto.traces.making import Making
from stretto.traces.recipes import prepared

DAY_S, SERVERS, ROUND_S = 86_400, 443, 60
GPUS = 8 * SERVERS
SEEDS = (0, 1, 2)


def drawn(seed: int = 0) -> Drawn:
    return draw(Making(jobs=50_390, hours=360.0, arrivals="lyra", seed=seed), CALIBRATED)


def skipping_fifo_s(jobs: Drawn, servers: int = SERVERS) -> np.ndarray:
    """(jobs,) starts every 60 s by submission; what fits by number passes what does not, and is put anywhere.

    By sizes, whose jobs are served by submission: the earliest of those of which one fits, over and over.
    """
    left, waits = 8 * servers, 0
    ends: list[tuple[float, int]] = []
    waiting: dict[int, deque[int]] = {size: deque() for size in sorted(set(jobs.gpus.tolist()))}
    start_s, come = np.full(len(jobs.gpus), np.nan), 0
    at_s, asked, ran_s = jobs.submitted_s.tolist(), jobs.gpus.tolist(), jobs.duration_s.tolist()
    while come < len(asked) or waits:
        next_s = min(ends[0][0] if ends else inf, at_s[come] if come < len(asked) else inf)
        now_s = ceil(next_s / ROUND_S) * ROUND_S
        while ends and ends[0][0] <= now_s:
            left += heappop(ends)[1]
        while come < len(asked) and at_s[come] <= now_s:
            waiting[asked[come]].append(come)
            come, waits = come + 1, waits + 1
        while heads := [(queue[0], size) for size, queue in waiting.items() if queue and size <= left]:
            row, size = min(heads)
            waiting[size].popleft()
            left, waits, start_s[row] = left - size, waits - 1, now_s
            heappush(ends, (now_s + ran_s[row], size))
    return start_s


@pytest.fixture(scope="module")
def starts_s() -> dict[int, np.ndarray]:
    return {seed: skipping_fifo_s(drawn(seed)) for seed in SEEDS}


def test_the_elastic_jobs_are_those_of_the_paper() -> None:
    jobs = drawn()
    gpu_s = jobs.gpus * jobs.duration_s
    assert jobs.elastic.mean() == pytest.approx(ELASTIC_SHARE, abs=1e-4)
    assert jobs.duration_s[jobs.elastic].mean() == pytest.approx(ELASTIC_MEAN_S, rel=0.02)
    assert gpu_s[jobs.elastic].sum() / gpu_s.sum() == pytest.approx(0.36, abs=0.03)


@pytest.mark.parametrize("seed", SEEDS)
def test_fifo_comes_near_the_published_baseline(seed: int, starts_s: dict[int, np.ndarray]) -> None:
    jobs, start_s = drawn(seed), starts_s[seed]
    queue_s = start_s - jobs.submitted_s
    jct_s = queue_s + jobs.duration_s
    published = {  # table 5, row 1
        "queuing": (3_072, 55, 8_357, queue_s),
        "completion": (16_610, 791, 82_933, jct_s),
    }
    for name, (mean, median, p95, ours_s) in published.items():
        figures = [ours_s.mean(), np.median(ours_s), np.percentile(ours_s, 95)]
        assert figures == pytest.approx([mean, median, p95], rel=0.15), name
    within_s = np.clip(15 * DAY_S - start_s, 0, jobs.duration_s)
    assert (jobs.gpus * within_s).sum() / (GPUS * 15 * DAY_S) == pytest.approx(0.72, abs=0.05)


def test_the_other_trace_comes_near_the_percentiles_of_the_published_baseline() -> None:
    making = Making(jobs=50_390, hours=360.0, arrivals="lyra")
    jobs = draw(making, BY_PERCENTILES)
    start_s = skipping_fifo_s(jobs)
    queue_s = start_s - jobs.submitted_s
    jct_s = queue_s + jobs.duration_s
    published = {  # table 8
        "queuing": ((55, 1_892, 8_357, 14_323), queue_s),
        "completion": ((791, 29_163, 82_933, 376_513), jct_s),
    }
    for name, (paper_s, ours_s) in published.items():
        factor = np.percentile(ours_s, [50, 75, 95, 99]) / paper_s
        assert 0.7 < factor.min() <= factor.max() < 1.5, name
    assert jct_s.mean() == pytest.approx(16_610, rel=0.05)
    within_s = np.clip(15 * DAY_S - start_s, 0, jobs.duration_s)
    assert (jobs.gpus * within_s).sum() / (GPUS * 15 * DAY_S) == pytest.approx(0.72, abs=0.03)
    gpu_s = jobs.gpus * jobs.duration_s
    assert gpu_s[jobs.elastic].sum() / gpu_s.sum() == pytest.approx(0.36, abs=0.03)


def test_seeds_have_the_same_durations_and_sizes_in_another_order() -> None:
    one, other = drawn(1), drawn(2)
    assert (np.sort(one.duration_s) == np.sort(other.duration_s)).all()
    sizes = [np.bincount(jobs.gpus) for jobs in (one, other)]
    assert np.abs(sizes[0] - sizes[1]).max() <= 3  # the same but for where counting begins
    assert not (one.duration_s == other.duration_s).all()


def test_every_day_has_its_share_of_the_work_beside_its_share_of_the_jobs() -> None:
    jobs = drawn()
    day = (jobs.submitted_s // DAY_S).astype(int)
    work = np.bincount(day, jobs.gpus * jobs.duration_s, 15) / (jobs.gpus * jobs.duration_s).sum()
    count = np.bincount(day, minlength=15) / len(day)
    usual = count > 0.04
    assert work[usual] / count[usual] == pytest.approx(1.0, rel=0.3)


def test_large_jobs_are_few_and_wait_longest(starts_s: dict[int, np.ndarray]) -> None:
    jobs = drawn()
    queue_s = starts_s[0] - jobs.submitted_s
    large = jobs.gpus >= 64
    assert 0 < large.mean() < 0.05
    assert queue_s[large].mean() > 3 * queue_s[~large].mean()


def test_a_smaller_trace_has_the_same_mix() -> None:
    small = draw(Making(jobs=6_299, hours=360.0, arrivals="lyra"), CALIBRATED)
    assert small.duration_s.mean() == pytest.approx(drawn().duration_s.mean(), rel=0.01)
    assert small.gpus.mean() == pytest.approx(drawn().gpus.mean(), rel=0.02)


@pytest.fixture(scope="module")
def workload() -> Workload:
    return make_workload("lyra", jobs=2_000)


def test_basic_is_what_the_recipe_makes_unless_told_otherwise(workload: Workload) -> None:
    jobs = prepared(workload, "lyra").jobs
    fungible = [job for job in jobs if not job.gpu_types]
    elastic = [job for job in jobs if job.adaptivity is not Adaptivity.RIGID]
    assert (len(fungible), len(elastic)) == (420, 100)
    assert {job.gpu_types for job in jobs} == {(), ("v100",)}
    assert all(job.model for job in elastic)
    assert all((job.min_gpus, job.max_gpus) == (job.gpus, 2 * job.gpus) for job in elastic)
    assert not any(job.heterogeneous or job.checkpoints for job in jobs)
    tuned = [
        job.id for job in prepared(workload, "lyra:tuned=true").jobs if job.adaptivity is Adaptivity.ADAPTIVE
    ]
    assert tuned == [job.id for job in elastic]


def test_larger_shares_keep_whom_smaller_ones_had(workload: Workload) -> None:
    few, many = (
        prepared(workload, f"lyra:elastic={share},heterogeneous={share},checkpoints={share}").jobs
        for share in (0.1, 0.6)
    )
    for one, other in zip(few, many, strict=True):
        assert one.adaptivity is Adaptivity.RIGID or other.adaptivity is not Adaptivity.RIGID
        assert one.heterogeneous <= other.heterogeneous
        assert bool(one.checkpoints) <= bool(other.checkpoints)


def test_ideal_jobs_can_do_everything(workload: Workload) -> None:
    for job in prepared(workload, "lyra:fungible=1,elastic=1,heterogeneous=1").jobs:
        assert (job.gpu_types, job.heterogeneous) == ((), True)
        assert job.max_gpus == 2 * job.min_gpus == 2 * job.gpus


def test_the_two_parts_of_the_jobs_are_all_jobs_and_fungible_ones_go_to_lent_servers(
    workload: Workload,
) -> None:
    others = prepared(workload, "lyra:elastic=0,keep=others")
    fungible = prepared(workload, "lyra:elastic=0,keep=fungible")
    assert sorted(job.id for part in (others, fungible) for job in part.jobs) == sorted(
        job.id for job in workload.jobs
    )
    assert {job.gpu_types for job in fungible.jobs} == {("t4",)}
    assert {job.gpu_types for job in others.jobs} == {("v100",)}
    assert len(fungible.truths) == len(fungible.jobs)
    assert "(fungible)" in fungible.source


def test_durations_and_submissions_stay_as_they_were(workload: Workload) -> None:
    made = prepared(workload, "lyra:elastic=0.5")
    assert made.truths == list(workload.truths)
    assert [
        replace(job, gpu_types=(), checkpoints=None) for job in made.jobs if job.max_gpus == job.gpus
    ] == [old for old, job in zip(workload.jobs, made.jobs, strict=True) if job.max_gpus == job.gpus]


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ("lyra:fungible=1.5", "recipe lyra: fungible must be from 0 to 1, got 1.5"),
        ("lyra:range=0.5", "recipe lyra: range must be >= 1, got 0.5"),
        ("lyra:keep=some", "lyra.keep must be one of all, fungible, others, got 'some'"),
    ],
)
def test_wrong_parameters_are_named(workload: Workload, recipe: str, message: str) -> None:
    with pytest.raises(InputError) as refused:
        prepared(workload, recipe)
    assert message in str(refused.value)


def test_the_jobs_of_the_testbed_are_those_of_the_paper() -> None:
    small = make_workload("lyra-testbed")
    duration_s = np.array([truth.duration_s for truth in small.truths])
    assert len(small.jobs) == 180
    assert (duration_s.min(), duration_s.max()) == (120.0, 7_200.0)
    assert max(job.submitted_s for job in small.jobs) < 8 * 3_600
    assert sum(bool(job.model) for job in small.jobs) == 10
    jobs = prepared(small, "lyra:elastic=0.0555").jobs
    assert max(job.max_gpus for job in jobs) == 16
    assert all(job.model for job in jobs if job.adaptivity is not Adaptivity.RIGID)
