import os
from math import nan
from pathlib import Path

import numpy as np
import pytest

from stretto.model import Adaptivity, InputError, Job, JobId, Kind, Reward
from stretto.traces import Workload, read_trace
from stretto.traces.recipes import prepared
from stretto.traces.workload import Outcome, Truth

DATA = Path(os.environ.get("STRETTO_DATA") or Path(__file__).parents[3] / "shared" / "data")
MIX2 = DATA / "chronus" / "trace_job_Philly_MIX2.csv.gz"


def workload(*runs: tuple[float, int], outcome: Outcome = Outcome.COMPLETED) -> Workload:
    """Rigid jobs with a deadline of these durations and GPUs."""
    jobs = [
        Job(JobId(f"j{row:04}"), float(row), gpus, adaptivity=Adaptivity.RIGID, rewards=(Reward(9e9, 1.0),))
        for row, (_, gpus) in enumerate(runs)
    ]
    return Workload("made", jobs, [Truth(duration_s=duration_s, outcome=outcome) for duration_s, _ in runs])


def interactive(made: Workload) -> list[bool]:
    return [job.kind is Kind.INTERACTIVE for job in made.jobs]


def test_jobs_of_up_to_half_an_hour_are_interactive() -> None:
    made = workload((1_799.0, 1), (1_800.0, 1), (1_801.0, 1))
    assert interactive(prepared(made, "cornucopia")) == [True, True, False]
    assert interactive(prepared(made, "cornucopia:interactive_s=1799")) == [True, False, False]


def test_jobs_run_on_one_to_twice_their_gpus_and_have_no_deadlines() -> None:
    (job,) = prepared(workload((60.0, 4)), "cornucopia").jobs
    assert (job.min_gpus, job.gpus, job.max_gpus) == (1, 4, 8)
    assert job.adaptivity is Adaptivity.STRONG_SCALING
    assert job.rewards == ()


def test_by_outcome_cancelled_jobs_and_those_that_fail_soon_are_interactive() -> None:
    runs = ((599.0, 1), (600.0, 1))
    assert interactive(prepared(workload(*runs), "cornucopia:labels=outcome")) == [False, False]
    failed = workload(*runs, outcome=Outcome.FAILED)
    assert interactive(prepared(failed, "cornucopia:labels=outcome")) == [True, False]
    assert interactive(prepared(failed, "cornucopia:labels=outcome,failed_s=1200")) == [True, True]
    cancelled = workload((9e6, 1), outcome=Outcome.CANCELLED)
    assert interactive(prepared(cancelled, "cornucopia:labels=outcome")) == [True]


@pytest.mark.slow
@pytest.mark.parametrize(("share", "wrong"), [("0.05", 1_205), ("0.1", 2_411)])
def test_so_many_batch_jobs_as_in_the_papers_table_3_are_mislabelled(share: str, wrong: int) -> None:
    made = workload(*[(60.0, 1)] * 6_829, *[(3_600.0, 1)] * 24_111)
    labels = interactive(prepared(made, f"cornucopia:mislabelled={share}"))
    assert sum(labels) == 6_829 + wrong
    assert all(labels[:6_829])


def test_draws_follow_their_seed() -> None:
    made = workload(*[(3_600.0, 1)] * 100)
    one, again, other = (prepared(made, f"cornucopia:mislabelled=0.3,seed={seed}") for seed in (1, 1, 2))
    assert interactive(one) == interactive(again)
    assert interactive(one) != interactive(other)


def test_a_share_of_each_class_of_jobs_with_several_gpus_is_not_elastic() -> None:
    sizes = [1, 2, 4, 5, 8, 16, 32]
    made = workload(*[(3_600.0, gpus) for gpus in sizes for _ in range(20)])
    jobs = prepared(made, "cornucopia:nonelastic=0.1").jobs
    rigid = np.array([job.gpus for job in jobs if job.adaptivity is Adaptivity.RIGID])
    assert [
        int(((rigid >= low) & (rigid <= high)).sum()) for low, high in ((1, 1), (2, 4), (5, 8), (9, 99))
    ] == [
        0,
        4,
        4,
        4,
    ]
    assert all(job.max_gpus == job.gpus for job in jobs if job.adaptivity is Adaptivity.RIGID)


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ("cornucopia:mislabelled=2", "mislabelled must be from 0 to 1, got 2"),
        ("cornucopia:interactive_s=-1", "interactive_s must be >= 0, got -1"),
        ("cornucopia:mislabeled=0.1", "mislabeled"),
    ],
)
def test_wrong_parameters_are_refused(recipe: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        prepared(workload((60.0, 1)), recipe)


def test_a_trace_that_tells_no_durations_is_refused() -> None:
    with pytest.raises(InputError, match="how long every job runs"):
        prepared(workload((nan, 1)), "cornucopia")


@pytest.mark.data
@pytest.mark.skipif(not MIX2.exists(), reason="the trace published with Chronus is not here")
def test_the_published_trace_gives_the_papers_counts_but_for_rows_of_no_gpus() -> None:
    made = prepared(read_trace(MIX2), "cornucopia")
    truths = made.truths
    first = np.array(interactive(made))
    gpu_min = np.array([job.gpus * one.duration_s / 60 for job, one in zip(made.jobs, truths, strict=True)])
    assert len(made.jobs) == 30_940 - 194
    assert gpu_min[first].sum() == pytest.approx(187_421)
    assert gpu_min[~first].sum() == pytest.approx(22_551_101)
    assert 6_829 - 194 <= first.sum() <= 6_829
