"""What jobs of one model learn from each other."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import isnan, nan

import pytest

from stretto.estimate.shared_points import MOST_BATCHES
from stretto.model import NOTHING_OBSERVED, Evidence, GpuType, InputError, Point, cluster_of
from stretto.policies.registry import load_policy
from stretto.sim.result import Result
from stretto.sim.run import Setup, simulate
from stretto.sim.settings import SimSettings
from stretto.sim.truth.model_knowledge import ModelKnowledge
from stretto.testing.builders import a_job
from stretto.traces.workload import Truth, Workload

from .made_worlds import a_truth

NODES = cluster_of("nodes", (GpuType("t4"), 2, 4))


def own_evidence(noise: float = nan) -> Evidence:
    return Evidence(a_truth().limits, (NOTHING_OBSERVED,), noise, noise)


def a_point(local_batch: int, gpus: int = 1) -> Point:
    return Point(1, gpus, local_batch, 0.1, 0.2)


def test_a_newcomer_is_shown_what_others_have_shown() -> None:
    known = ModelKnowledge.of_types(1)
    known.with_point(0, a_point(8))
    known.tell_noise(3, 2.0, 5.0)
    shown = known.shown_to(own_evidence(), epoch=0)
    assert shown.observed == (known.observed[0],)
    assert (shown.grad_sqr, shown.grad_var) == (2.0, 5.0)


def test_noise_is_that_of_the_nearest_epoch_until_a_job_has_its_own() -> None:
    known = ModelKnowledge.of_types(1)
    known.tell_noise(1, 1.0, 1.0)
    known.tell_noise(9, 9.0, 9.0)
    assert known.shown_to(own_evidence(), epoch=8).grad_sqr == 9.0
    assert known.shown_to(own_evidence(noise=4.0), epoch=8).grad_sqr == 4.0


def test_evidence_to_which_nothing_is_added_stays_the_same_object() -> None:
    known = ModelKnowledge.of_types(1)
    known.with_point(0, a_point(8))
    shown = known.shown_to(own_evidence(), epoch=0)
    assert isnan(shown.grad_sqr)
    assert known.shown_to(shown, epoch=1) is shown


def test_a_placement_is_described_by_a_few_batches_that_are_apart() -> None:
    known = ModelKnowledge.of_types(1)
    for batch in range(8, 4_096):
        known.with_point(0, a_point(batch))
    known.with_point(0, a_point(9, gpus=2))
    batches = [point.local_batch for point in known.observed[0].points if point.gpus == 1]
    assert len(batches) == MOST_BATCHES
    assert all(later >= 1.4 * earlier for earlier, later in pairwise(batches))
    assert [point.local_batch for point in known.observed[0].points if point.gpus == 2] == [9]


# ── in a simulation ─────────────────────────────────────────────────────────────────────────────────────────


def simulated(policy: str, share: str = "", models: Sequence[str] = ("resnet18-cifar10",) * 2) -> Result:
    """Two jobs, one long after the other."""
    jobs = [
        replace(a_job("first", max_gpus=8), model=models[0]),
        replace(a_job("second", at_s=204_000.0, max_gpus=8), model=models[1]),
    ]
    settings = {"share": share} if share else {}
    setup = Setup(NODES, load_policy(policy), SimSettings(), estimate_settings=settings)
    return simulate(Workload("two", jobs, [Truth(nan)] * 2), setup)


def test_who_comes_later_need_not_find_out_again() -> None:
    first_s, second_s = simulated("stretto").jct_s
    assert second_s < 0.98 * first_s


def test_another_model_learns_nothing_from_it() -> None:
    alone = simulated("stretto", models=("resnet50-imagenet", "resnet18-cifar10"))
    shared = simulated("stretto")
    assert alone.jct_s[1] > shared.jct_s[1]


def test_under_other_policies_each_learns_alone() -> None:
    first_s, second_s = simulated("sia").jct_s
    assert second_s == pytest.approx(first_s, rel=1e-6)


def test_other_policies_may_share_too_and_the_run_says_so() -> None:
    result = simulated("sia", "model")
    assert result.settings["estimate.share"] == "model"
    assert result.settings["sim.learning"] == "model"
    assert result.jct_s[1] != pytest.approx(result.jct_s[0], rel=1e-6)


def test_what_is_neither_is_refused() -> None:
    with pytest.raises(InputError, match=r"estimate.share must be one of job, model, got 'all'"):
        simulated("stretto", "all")
