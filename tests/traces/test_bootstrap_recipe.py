"""Whole days of a trace, drawn with replacement."""

from collections import Counter

import pytest

from stretto.model import Adaptivity, InputError, Job, JobId, Reward
from stretto.traces import Workload
from stretto.traces.recipes import prepared
from stretto.traces.workload import Truth

DAY_S = 86_400.0


def two_jobs_a_day(days: int) -> Workload:
    jobs = [
        Job(
            JobId(f"job-{day}-{hour}"),
            day * DAY_S + hour * 3_600.0,
            1,
            adaptivity=Adaptivity.RIGID,
            rewards=(Reward(day * DAY_S + (hour + 1) * 3_600.0, 2.0),),
        )
        for day in range(days)
        for hour in (2, 20)
    ]
    truths = [Truth(duration_s=10.0 + row) for row in range(len(jobs))]
    return Workload("made", jobs, truths, source="made")


def test_days_are_whole_and_keep_their_times_and_what_is_due_then() -> None:
    made = prepared(two_jobs_a_day(3), "bootstrap:days=5,seed=1")
    assert [job.submitted_s for job in made.jobs] == [
        day * DAY_S + hour * 3_600.0 for day in range(5) for hour in (2, 20)
    ]
    assert all(job.rewards == (Reward(job.submitted_s + 3_600.0, 2.0),) for job in made.jobs)
    assert len({job.id for job in made.jobs}) == 10
    for job, truth in zip(made.jobs, made.truths, strict=True):
        _, _, _, source, hour = job.id.split("-")
        assert truth.duration_s == 10.0 + 2 * int(source) + (hour == "20")


def test_every_day_may_come_and_may_come_again() -> None:
    sources = Counter(
        job.id.split("-")[3]
        for seed in range(20)
        for job in prepared(two_jobs_a_day(3), f"bootstrap:days=3,seed={seed}").jobs
    )
    assert sorted(sources) == ["0", "1", "2"]
    drawn = [job.id.split("-")[3] for job in prepared(two_jobs_a_day(2), "bootstrap:days=9").jobs]
    assert len(drawn) == 18 > len(set(drawn))


def test_equal_seeds_draw_equal_days() -> None:
    first, again, other = (prepared(two_jobs_a_day(9), f"bootstrap:seed={seed}").jobs for seed in (4, 4, 5))
    assert first == again != other


@pytest.mark.parametrize("days", [0, 1_001])
def test_a_number_of_days_out_of_range_is_refused(days: int) -> None:
    with pytest.raises(InputError, match=f"recipe bootstrap: days must be from 1 to 1000, got {days}"):
        prepared(two_jobs_a_day(1), f"bootstrap:days={days}")
