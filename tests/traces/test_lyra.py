"""The made stand-in for Lyra's trace, and the recipe of its scenarios."""

from collections import deque
from dataclasses import replace
from heapq import heappop, heappush

import numpy as np
import pytest

from stretto.model import Adaptivity, InputError
from stretto.traces import Workload, make_workload
from stretto.traces.lyra import CALIBRATED, ELASTIC_MEAN_S, ELASTIC_SHARE, Drawn, draw
from stretto.traces.making import Making
from stretto.traces.recipes import prepared

DAY_S, GPUS = 86_400, 3_544
SEEDS = (0, 1, 2)


def drawn(seed: int = 0) -> Drawn:
    return draw(Making(jobs=50_390, hours=360.0, arrivals="lyra", seed=seed), CALIBRATED)


def strict_fifo_s(jobs: Drawn, gpus: int) -> np.ndarray:
    """(jobs,) starts in the order of submission on GPUs that are all alike and near: no node is looked at."""
    ends: list[tuple[float, int]] = []
    start_s, now_s, free = np.zeros(len(jobs.gpus)), 0.0, gpus
    waiting = deque(zip(jobs.submitted_s.tolist(), jobs.gpus.tolist(), jobs.duration_s.tolist(), strict=True))
    for row, (at_s, asked, ran_s) in enumerate(waiting):
        now_s = max(now_s, at_s)
        while ends and (ends[0][0] <= now_s or free < asked):
            ended_s, back = heappop(ends)
            now_s, free = max(now_s, ended_s), free + back
        start_s[row], free = now_s, free - asked
        heappush(ends, (now_s + ran_s, asked))
    return start_s


def test_the_elastic_jobs_are_those_of_the_paper() -> None:
    jobs = drawn()
    gpu_s = jobs.gpus * jobs.duration_s
    assert jobs.elastic.mean() == pytest.approx(ELASTIC_SHARE, abs=1e-4)
    assert jobs.duration_s[jobs.elastic].mean() == pytest.approx(ELASTIC_MEAN_S, rel=0.02)
    assert gpu_s[jobs.elastic].sum() / gpu_s.sum() == pytest.approx(0.36, abs=0.03)


@pytest.mark.parametrize("seed", SEEDS)
def test_fifo_on_so_many_gpus_comes_near_the_published_baseline(seed: int) -> None:
    jobs = drawn(seed)
    start_s = strict_fifo_s(jobs, GPUS)
    queue_s = start_s - jobs.submitted_s
    jct_s = queue_s + jobs.duration_s
    # Nobody waits here for GPUs on one node, as they do where the calibration comes within 15 %.
    assert queue_s.mean() == pytest.approx(3_072, rel=0.4)
    assert np.percentile(queue_s, 95) == pytest.approx(8_357, rel=0.4)
    assert jct_s.mean() == pytest.approx(16_610, rel=0.15)
    assert np.median(jct_s) == pytest.approx(791, rel=0.3)
    assert np.percentile(jct_s, 95) == pytest.approx(82_933, rel=0.15)
    within_s = np.clip(15 * DAY_S - start_s, 0, jobs.duration_s)
    assert (jobs.gpus * within_s).sum() / (GPUS * 15 * DAY_S) == pytest.approx(0.72, abs=0.05)


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
    together = int(CALIBRATED.campaign_h // 24)
    usual = [one for one in np.flatnonzero(count > 0.04).tolist() if one != together]
    mean = np.mean(work[usual] / count[usual])
    assert work[usual] / count[usual] == pytest.approx(mean, rel=0.1)
    assert work[together] / count[together] > 1.2 * mean  # many large jobs come within an hour


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
