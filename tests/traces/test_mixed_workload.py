"""The workload that has every class of jobs at once."""

from collections import Counter

import pytest

from stretto.clusters import read_cluster
from stretto.model import Adaptivity, Kind
from stretto.traces import check_against, make_workload
from stretto.traces.mixed_workload import SHARES, TEAMS, WORKER_GPUS, class_of
from stretto.traces.recipes.unisched import SOFT_STEPS


@pytest.mark.parametrize("seed", range(3))
def test_each_class_has_its_share_whatever_the_seed(seed: int) -> None:
    workload = make_workload("mixed", jobs=100, seed=seed)
    counts = Counter(class_of(job.id) for job in workload.jobs)
    assert counts == {name: round(100 * share) for name, share in SHARES.items()}


def test_jobs_of_a_class_are_what_its_name_says() -> None:
    workload = check_against(make_workload("mixed", jobs=200, seed=4), read_cluster("mixed-64"))
    for job, truth in zip(workload.jobs, workload.truths, strict=True):
        kind = class_of(job.id)
        assert (job.kind is Kind.INTERACTIVE) == (kind == "session")
        assert (job.adaptivity is Adaptivity.RIGID) == (kind in ("session", "rigid"))
        assert len(job.rewards) == {"strict": 1, "soft": len(SOFT_STEPS)}.get(kind, 0)
        assert (job.priority > 0) == (kind == "urgent")
        assert (job.gpus_per_worker == WORKER_GPUS) == (kind == "hybrid")
        assert (truth.duration_s > 0) == (kind == "session")  # of the others it follows from the model
        assert job.user in TEAMS[job.queue]
