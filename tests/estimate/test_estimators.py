"""From a snapshot to a matrix of speeds."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drawn import scaled

from stretto.estimate.beliefs import Fit
from stretto.estimate.efficiency import GradientNoise, gain
from stretto.estimate.estimators import MeasuredTables, NoEstimate, OnlineGoodput
from stretto.estimate.fit import fit
from stretto.estimate.goodput import BatchLimits, best_batch
from stretto.estimate.other_types import Untried
from stretto.estimate.published_fit import published_fit
from stretto.estimate.throughput import Choice, Mode, ThroughputModel, iteration_s, step_s, without_sync
from stretto.model import (
    NOTHING_OBSERVED,
    Evidence,
    FloatArray,
    GpuType,
    InputError,
    MeasuredSpeeds,
    Observations,
    Point,
    Speeds,
    TrainingLimits,
    cluster_of,
    configurations_from,
    powers_and_whole_nodes,
)
from stretto.testing.builders import a_job, a_snapshot

A, B, C = GpuType("A"), GpuType("B"), GpuType("C")
CLUSTER = cluster_of("mixed", (A, 2, 4), (B, 1, 8), (C, 1, 8))
COLUMNS = powers_and_whole_nodes(CLUSTER)
TRUE = (
    ThroughputModel(0.05, 0.004, 0.08, 0.006, 0.03, 0.004, 1.6),
    ThroughputModel(0.03, 0.002, 0.06, 0.004, 0.02, 0.002, 1.6),
    ThroughputModel(0.04, 0.003, 0.07, 0.005, 0.02, 0.003, 1.6),
)
SINGLE_PER_S = (100.0, 250.0, 150.0)
SQR, VAR = 1.0, 20.0


def limits(**changes: Any) -> TrainingLimits:
    known: dict[str, Any] = {
        "init_batch": 32,
        "max_batch": 4096,
        "min_local": np.array([8, 8, 8]),
        "max_local": np.array([64, 256, 128]),
        "single_per_s": np.array(SINGLE_PER_S),
        "replica_gpus": np.ones(3, dtype=np.int64),
        "restart_s": 30.0,
        "reach_gpus": 512,
    }
    return TrainingLimits(**(known | changes))


LIMITS = limits()


def seen_on(kind: int, *placements: tuple[int, int], locals_: Sequence[int] = (8, 32)) -> Observations:
    """Exact times on placements (nodes, GPUs)."""
    points = []
    for nodes, gpus in placements:
        for local in locals_:
            whole_s = float(step_s(TRUE[kind], nodes, gpus, local))
            grad_s = TRUE[kind].alpha_c + TRUE[kind].beta_c * local
            points.append(Point(nodes, gpus, local, grad_s, whole_s))
    return Observations(tuple(points))


ALONE, SEVERAL = ((1, 1),), ((1, 1), (1, 2), (1, 4), (2, 8))


def evidence(*observed: Observations, of: TrainingLimits = LIMITS, fixed_batch: int = 0) -> Evidence:
    padded = (*observed, *[NOTHING_OBSERVED] * (3 - len(observed)))
    known = any(padded)
    return Evidence(of, padded, SQR if known else np.nan, VAR if known else np.nan, fixed_batch)


def estimate(estimator: Any, *shown: Evidence | None, gpus: int = 3, tables: Any = None) -> Speeds:
    jobs = [a_job(str(number), gpus=gpus) for number in range(len(shown))]
    snapshot = a_snapshot(*jobs, cluster=CLUSTER, known_evidence=list(shown), known_tables=tables)
    speeds: Speeds = estimator.estimate(snapshot, COLUMNS)
    return speeds


def column(nodes: int, gpus: int, kind: int) -> int:
    found = COLUMNS.index(nodes, gpus, kind)
    assert found >= 0
    return found


def of_kind(row: FloatArray, kind: int) -> FloatArray:
    chosen: FloatArray = row[COLUMNS.kind == kind]
    return chosen


def best(observed: Observations, kind: int, nodes: int, gpus: int, fitted: Any = fit) -> float:
    """Steps of the initial batch per second, the long way."""
    bounds = BatchLimits(32, 4096, int(LIMITS.min_local[kind]), int(LIMITS.max_local[kind]))
    found = best_batch(fitted(observed), GradientNoise(SQR, VAR), bounds, nodes, gpus)
    return found.goodput / LIMITS.init_batch


def test_nothing_is_estimated_for_policies_that_look_at_no_speeds() -> None:
    speeds = estimate(NoEstimate(), evidence(seen_on(0, *SEVERAL)))
    assert np.isnan(speeds.per_s).all()
    assert not speeds.modelled.any()


def test_on_a_type_where_it_ran_a_jobs_own_model_is_believed_at_its_best_batch() -> None:
    observed = seen_on(0, *SEVERAL)
    speeds = estimate(OnlineGoodput(), evidence(observed))
    for nodes, gpus in SEVERAL:
        assert speeds.per_s[0, column(nodes, gpus, 0)] == pytest.approx(best(observed, 0, nodes, gpus))
    assert speeds.requested_per_s[0, 0] == pytest.approx(best(observed, 0, 1, 3))
    assert speeds.modelled.tolist() == [True]
    assert speeds.observed_gpus.tolist() == [[8, 0, 0]]


def test_the_published_fit_is_used_where_it_is_asked_for() -> None:
    observed = seen_on(0, *SEVERAL)
    row = estimate(OnlineGoodput(fit=Fit.PUBLISHED), evidence(observed)).per_s[0]
    assert row[column(1, 4, 0)] == pytest.approx(best(observed, 0, 1, 4, published_fit))
    assert row[column(1, 4, 0)] != best(observed, 0, 1, 4)


def test_speed_on_another_type_is_multiplied_by_the_ratio_on_one_gpu() -> None:
    """With the batch limits of the type that was tried, and nodes counted anew: B holds 8 GPUs, A only 4."""
    speeds = estimate(OnlineGoodput(), evidence(seen_on(0, *SEVERAL)))
    row = speeds.per_s[0]
    for gpus, nodes_of_a in ((1, 1), (4, 1), (8, 2)):
        assert row[column(1, gpus, 1)] == pytest.approx(2.5 * row[column(nodes_of_a, gpus, 0)])
        assert row[column(1, gpus, 2)] == pytest.approx(1.5 * row[column(nodes_of_a, gpus, 0)])
    assert speeds.requested_per_s[0].tolist() == pytest.approx(
        (speeds.requested_per_s[0, 0] * np.array([1, 2.5, 1.5])).tolist()
    )


@pytest.mark.parametrize("tried", [0, 1])
def test_the_batch_that_is_chosen_is_the_one_whose_speed_is_believed(tried: int) -> None:
    observed = [NOTHING_OBSERVED, NOTHING_OBSERVED]
    observed[tried] = seen_on(tried, *SEVERAL)
    snapshot = a_snapshot(a_job("a"), cluster=CLUSTER, known_evidence=[evidence(*observed)])
    estimator = OnlineGoodput()
    per_s = estimator.estimate(snapshot, COLUMNS).per_s[0]
    held = [
        (0, int(kind), int(nodes), int(gpus))
        for kind, nodes, gpus in zip(COLUMNS.kind, COLUMNS.nodes, COLUMNS.gpus, strict=True)
    ]
    goodput = np.array([choice.goodput for choice in estimator.batches(snapshot, COLUMNS, held)])
    ratio = np.array(SINGLE_PER_S)[COLUMNS.kind] / SINGLE_PER_S[tried]
    assert per_s == pytest.approx(ratio * goodput / LIMITS.init_batch)


def test_a_job_seen_on_one_gpu_only_scales_perfectly_at_each_batch() -> None:
    row = estimate(OnlineGoodput(), evidence(seen_on(0, *ALONE))).per_s[0]
    observed = seen_on(0, *ALONE)
    model = fit(observed)._replace(alpha_n=1e-8, beta_n=0, alpha_l=1e-8, beta_l=0)
    batch = 64 * 4  # the largest local batch on four GPUs
    lower_bound = gain(batch, 32, VAR, SQR) / iteration_s(np.array(model), 1, 4, 64, 0)
    assert row[column(1, 4, 0)] >= 0.999 * float(lower_bound)
    assert row[column(1, 8, 1)] == pytest.approx(2.5 * row[column(2, 8, 0)])


def test_of_a_job_that_never_ran_its_profile_is_believed_to_scale() -> None:
    row = estimate(OnlineGoodput(), evidence()).per_s[0]
    gpus = COLUMNS.gpus
    assert row == pytest.approx(np.array(SINGLE_PER_S)[COLUMNS.kind] * gpus / 32)
    blind = estimate(OnlineGoodput(), evidence(of=limits(single_per_s=np.full(3, np.nan))))
    assert blind.per_s[0] == pytest.approx(gpus / 32)
    assert not blind.modelled[0]


def test_without_profiling_types_are_alike_and_scaling_perfect_until_a_type_is_tried() -> None:
    no_prof = OnlineGoodput(mode=Mode.NO_PROF)
    assert estimate(no_prof, evidence()).per_s[0] == pytest.approx(COLUMNS.gpus / 32)
    row = estimate(no_prof, evidence(seen_on(0, *SEVERAL))).per_s[0]
    observed = seen_on(0, *SEVERAL)
    assert row[column(1, 4, 0)] == pytest.approx(best(observed, 0, 1, 4))  # tried
    for gpus in (1, 2, 4, 8):
        perfect = best(observed, 0, 2, gpus, lambda seen: ThroughputModel(*without_sync(np.array(fit(seen)))))
        assert row[column(1, gpus, 1)] == pytest.approx(perfect)
    assert row[column(1, 8, 1)] > 1.1 * row[column(2, 8, 0)]
    assert of_kind(row, 1) == pytest.approx(of_kind(row, 2))


@pytest.mark.parametrize("ran", [(), ALONE, SEVERAL], ids=["nowhere", "on one GPU", "on several"])
@pytest.mark.parametrize("choice", list(Choice))
def test_without_profiling_nothing_of_untried_types_is_known(
    choice: Choice, ran: tuple[tuple[int, int], ...]
) -> None:
    """Not their speeds, nor how much fits into their memory: only that the model runs there."""
    other = limits(
        single_per_s=np.array([100.0, 1.0, 900.0]),
        single_ratio=np.array([[1.0, 7.0, 3.0], [1 / 7, 1.0, 2.0], [1 / 3, 0.5, 1.0]]),
        min_local=np.array([8, 1, 16]),
        max_local=np.array([64, 32, 2048]),
    )
    estimator = OnlineGoodput(mode=Mode.NO_PROF, reference=choice)
    seen = (seen_on(0, *ran),) if ran else ()
    usual = estimate(estimator, evidence(*seen)).per_s[0]
    assert (usual > 0).any()
    assert estimate(estimator, evidence(*seen, of=other)).per_s[0] == pytest.approx(usual, nan_ok=True)


def test_the_more_is_known_the_nearer_is_the_estimate_to_the_truth() -> None:
    """A job that ran on A, on B, by mode: the oracle was shown B as well."""
    ran = seen_on(0, *SEVERAL)
    on_b = ((1, 1), (1, 2), (1, 4), (1, 8))
    truth = of_kind(estimate(OnlineGoodput(), evidence(ran, seen_on(1, *on_b))).per_s[0], 1)
    foreseen = evidence(ran, seen_on(1, *on_b), seen_on(2, *on_b))

    def error(mode: Mode, shown: Evidence) -> float:
        believed = of_kind(estimate(OnlineGoodput(mode=mode), shown).per_s[0], 1)
        return float(np.abs(np.log(believed / truth)).mean())

    oracle, bootstrap = error(Mode.ORACLE, foreseen), error(Mode.BOOTSTRAP, evidence(ran))
    assert oracle == 0.0
    assert oracle < bootstrap < error(Mode.NO_PROF, evidence(ran))


@pytest.mark.parametrize(
    ("reference", "stands_in"), [pytest.param("most", 2, id="most"), pytest.param("first", 0, id="first")]
)
def test_which_type_stands_in_for_another(reference: str, stands_in: int) -> None:
    shown = evidence(seen_on(0, (1, 2)), NOTHING_OBSERVED, seen_on(2, (1, 2), (1, 4)))
    row = estimate(OnlineGoodput(reference=Choice(reference)), shown).per_s[0]
    ratio = SINGLE_PER_S[1] / SINGLE_PER_S[stands_in]
    assert row[column(1, 4, 1)] == pytest.approx(ratio * row[column(1, 4, stands_in)])


def test_replicas_of_several_gpus_run_on_whole_replicas_only() -> None:
    """A replica takes 2 GPUs of A and 4 of B; C cannot hold one. K counts replicas."""
    hybrid = limits(replica_gpus=np.array([2, 4, 1]), max_local=np.array([64, 256, 0]))
    row = estimate(OnlineGoodput(), evidence(seen_on(0, *SEVERAL), of=hybrid)).per_s[0]
    possible = {
        (int(gpus), int(kind)) for gpus, kind in zip(COLUMNS.gpus, COLUMNS.kind, strict=True)
        if np.isfinite(row[column(1 if kind else 1 + (gpus > 4), gpus, kind)])
    }  # fmt: skip
    assert possible == {(2, 0), (4, 0), (8, 0), (4, 1), (8, 1)}
    assert row[column(1, 4, 1)] == pytest.approx(2.5 * row[column(1, 2, 0)])  # one replica
    assert row[column(1, 8, 1)] == pytest.approx(2.5 * row[column(1, 4, 0)])  # two
    asked = estimate(OnlineGoodput(), evidence(seen_on(0, *SEVERAL), of=hybrid), gpus=4)
    assert np.isfinite(asked.requested_per_s[0]).tolist() == [True, True, False]
    assert asked.observed_gpus.tolist() == [[16, 0, 0]]  # 8 replicas of 2
    assert asked.reach_gpus.tolist() == [512 * 4]


def test_a_fixed_batch_is_neither_grown_nor_shrunk() -> None:
    observed = seen_on(0, *SEVERAL)
    row = estimate(OnlineGoodput(), evidence(observed, fixed_batch=128)).per_s[0]
    worth = float(gain(128, 32, VAR, SQR))
    for nodes, gpus, local, passes in ((1, 1, 64, 2), (1, 2, 64, 1), (1, 4, 32, 1), (2, 8, 16, 1)):
        per_s = worth / float(iteration_s(fit(observed), nodes, gpus, local, passes - 1))
        assert row[column(nodes, gpus, 0)] == pytest.approx(per_s, rel=1e-6)


def test_a_soft_limit_gives_way_where_gpus_could_not_all_be_used_within_it() -> None:
    tight, soft = limits(max_batch=32), limits(max_batch=32, max_is_soft=True)
    rows = [estimate(OnlineGoodput(), evidence(seen_on(0, *SEVERAL), of=of)).per_s[0] for of in (tight, soft)]
    eight = column(2, 8, 0)
    assert np.isnan(rows[0][eight])  # 8 GPUs need at least 8 samples each
    assert rows[1][eight] > 0
    assert rows[0][column(1, 4, 0)] == rows[1][column(1, 4, 0)]


def test_jobs_of_which_only_a_table_is_known_fall_back_on_it() -> None:
    per_s = np.arange(27.0).reshape(3, 9)
    table = MeasuredSpeeds(per_s, per_s / 2)
    speeds = estimate(OnlineGoodput(), None, evidence(seen_on(0, *SEVERAL)), tables=[table, table])
    assert speeds.per_s[0, column(1, 4, 1)] == per_s[1, 4]
    assert speeds.per_s[0, column(2, 8, 0)] == per_s[0, 8]
    assert speeds.per_s[1, column(1, 4, 0)] == pytest.approx(best(seen_on(0, *SEVERAL), 0, 1, 4))
    assert speeds.modelled.tolist() == [True, True]


def test_tables_tell_consolidated_from_spread_and_end_somewhere() -> None:
    per_s = np.arange(15.0).reshape(3, 5)  # measured on up to 4 GPUs
    columns = configurations_from([(1, 4, 1), (2, 4, 1), (2, 8, 0)])
    snapshot = a_snapshot(
        a_job("a", gpus=4),
        a_job("b", gpus=5),
        cluster=CLUSTER,
        known_tables=[MeasuredSpeeds(per_s, per_s / 2)] * 2,
    )
    speeds = MeasuredTables().estimate(snapshot, columns)
    assert speeds.per_s[0].tolist() == pytest.approx([9.0, 4.5, np.nan], nan_ok=True)
    assert speeds.requested_per_s[0].tolist() == [4.0, 9.0, 14.0]
    assert np.isnan(speeds.requested_per_s[1]).all()


def test_of_nobody_nothing_is_said() -> None:
    for estimator in (OnlineGoodput(), MeasuredTables(), NoEstimate()):
        assert estimate(estimator, tables=[]).per_s.shape == (0, len(COLUMNS))


@settings(max_examples=scaled(30), deadline=None)
@given(st.data())
def test_what_is_remembered_equals_what_is_computed_afresh(data: st.DataObject) -> None:
    """Whatever was asked before, and in whatever company."""
    kinds = st.sampled_from([(), ALONE, ((1, 2),), SEVERAL])
    shown = [
        evidence(
            *(seen_on(kind, *data.draw(kinds)) for kind in range(3)),
            of=data.draw(st.sampled_from([LIMITS, limits(max_is_soft=True, max_batch=256)])),
            fixed_batch=data.draw(st.sampled_from([0, 64])),
        )
        for _ in range(data.draw(st.integers(1, 5)))
    ]
    used = OnlineGoodput()
    estimate(used, *shown[::-1])
    again = estimate(used, *shown)
    for row, one in enumerate(shown):
        fresh = estimate(OnlineGoodput(), one)
        assert np.array_equal(again.per_s[row], fresh.per_s[0], equal_nan=True)
        assert np.array_equal(again.requested_per_s[row], fresh.requested_per_s[0], equal_nan=True)


def test_wrong_settings_are_refused_in_one_line() -> None:
    with pytest.raises(InputError, match=r"estimate\.reference must be one of most, first, got 'last'"):
        OnlineGoodput(reference="last")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"estimate\.fit must be one of best, published, got 'worst'"):
        OnlineGoodput(fit="worst")  # type: ignore[arg-type]


def test_a_fixed_batch_may_be_split_below_what_was_profiled() -> None:
    """As in the world, where such a job runs on any number of GPUs that its batch has samples for."""
    seen = Observations((Point(1, 1, 128, 0.50, 0.51), Point(1, 2, 64, 0.30, 0.33)))
    assert int(LIMITS.min_local[1]) * 8 > 16
    row = estimate(OnlineGoodput(), evidence(NOTHING_OBSERVED, seen, fixed_batch=16)).per_s[0]
    assert np.isfinite(row[COLUMNS.gpus <= 16]).all()
    assert np.isnan(row[COLUMNS.gpus > 16]).all()


@pytest.mark.parametrize("untried", list(Untried))
def test_what_is_believed_of_untried_types_without_profiles(untried: Untried) -> None:
    """A job ran on several GPUs of A: on B it may have many, one or none, and scale as it was seen to."""
    estimator = OnlineGoodput(mode=Mode.NO_PROF, untried=untried)
    ran = evidence(seen_on(0, *SEVERAL))
    row = estimate(estimator, ran).per_s[0]
    hopeful = estimate(OnlineGoodput(mode=Mode.NO_PROF), ran).per_s[0]
    assert of_kind(row, 0) == pytest.approx(of_kind(hopeful, 0)), "it was tried"
    one, eight = row[column(1, 1, 1)], row[column(1, 8, 1)]
    match untried:
        case Untried.PERFECT:
            assert row == pytest.approx(hopeful)
        case Untried.MEASURED:
            assert one == pytest.approx(row[column(1, 1, 0)])
            assert eight < 0.95 * hopeful[column(1, 8, 1)]
        case Untried.SMALLEST:
            assert one == pytest.approx(hopeful[column(1, 1, 1)])
            assert np.isnan(eight)
        case Untried.NEVER:
            assert np.isnan(of_kind(row, 1)).all()
    blind = estimate(estimator, evidence()).per_s[0]
    assert np.isfinite(blind).all(), "a job that has run nowhere may begin anywhere"


def test_beliefs_count_in_the_mode_without_profiles_alone() -> None:
    ran = evidence(seen_on(0, *SEVERAL))
    usual = estimate(OnlineGoodput(), ran).per_s
    assert estimate(OnlineGoodput(untried=Untried.NEVER), ran).per_s == pytest.approx(usual, nan_ok=True)
    with pytest.raises(InputError, match=r"untried must be one of perfect, measured, smallest, never"):
        OnlineGoodput(untried="hope")  # type: ignore[arg-type]
