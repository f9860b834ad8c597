"""Shares that cannot be, and what is said about them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stretto.model import Adaptivity, BadPlan, GpuType, Job, Reasons, Shares, cluster_of
from stretto.scheduler.check import check_shares
from stretto.testing.builders import a_job, a_snapshot, grant

MIXED = cluster_of("mixed", (GpuType("slow"), 1, 4), (GpuType("fast"), 2, 2))


def shares(gpus: list[int], kind: list[int]) -> Shares:
    jobs = len(gpus)
    nobody = np.zeros(jobs, dtype=np.int64)
    return Shares(np.array(gpus), np.array(kind), nobody, Reasons(nobody))


def check(given: Shares, *jobs: Job, usable: list[bool] | None = None, held: Any = None) -> None:
    snapshot = a_snapshot(*jobs, cluster=MIXED, allocations=held)
    if usable is not None:
        snapshot = replace(snapshot, usable=np.array(usable))
    check_shares(snapshot, given)


@pytest.mark.parametrize(
    ("given", "jobs"),
    [
        pytest.param(shares([4, 4], [0, 1]), [a_job("a", 4), a_job("b", 4)], id="all there is"),
        pytest.param(shares([0, 0], [-1, -1]), [a_job("a", 4), a_job("b", 4)], id="nothing"),
        pytest.param(shares([8], [-1]), [a_job("a", 8)], id="any type"),
    ],
)
def test_what_fits_passes(given: Shares, jobs: list[Job]) -> None:
    check(given, *jobs)


@pytest.mark.parametrize(
    ("given", "job", "message"),
    [
        pytest.param(
            shares([2], [0]), lambda: a_job("a", 4, min_gpus=3),
            "the policy gives job a 2 GPUs, expected 3 to ", id="fewer than its least",
        ),
        pytest.param(
            shares([3], [0]), lambda: a_job("a", 2, max_gpus=2),
            "the policy gives job a 3 GPUs, expected 1 to 2", id="more than its most",
        ),
        pytest.param(
            shares([2], [0]), lambda: a_job("a", 4, adaptivity=Adaptivity.RIGID),
            "the policy gives job a 2 GPUs, expected 4$", id="a rigid job resized",
        ),
        pytest.param(
            shares([2], [0]), lambda: a_job("a", 2, gpu_types=("fast",)),
            "the policy gives job a GPUs of type slow, which it does not accept", id="a type that it refuses",
        ),
        pytest.param(
            shares([5], [0]), lambda: a_job("a", 5),
            "the policy gives 5 GPUs of type slow, expected at most 4", id="more of a type",
        ),
        pytest.param(
            shares([9], [-1]), lambda: a_job("a", 9),
            "the policy gives 9 GPUs, expected at most 8", id="more of any type",
        ),
        pytest.param(None, lambda: a_job("a"), "the policy returns None, expected Shares", id="none at all"),
        pytest.param(shares([1, 1], [0, 0]), lambda: a_job("a"), "2 rows, expected 1", id="too many rows"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_by_name(given: Shares, job: Callable[[], Job], message: str) -> None:
    with pytest.raises(BadPlan, match=message):
        check(given, job())


def test_gpus_of_nodes_that_have_gone_do_not_count() -> None:
    check(shares([4], [1]), a_job("a", 4))
    with pytest.raises(BadPlan, match="gives 4 GPUs of type fast, expected at most 2"):
        check(shares([4], [1]), a_job("a", 4), usable=[True, True, False])


def test_gpus_that_are_held_may_be_given_to_others() -> None:
    held = {"a": grant(0, n0=4)}
    check(shares([0, 4], [-1, 0]), a_job("a", 4), a_job("b", 4), held=held)


def test_a_job_whose_owner_wants_other_sizes_may_keep_what_it_holds_but_nothing_else() -> None:
    grown = a_job("a", 4, min_gpus=4, max_gpus=4)
    check(shares([1], [0]), grown, held={"a": grant(0, n0=1)})
    with pytest.raises(BadPlan, match=r"gives job a 2 GPUs, expected 4$"):
        check(shares([2], [0]), grown, held={"a": grant(0, n0=1)})
