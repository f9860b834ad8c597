"""A table of speeds: exact where it was measured, fitted between, assumed where nothing is known."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.estimate.speed_table import (
    MEASUREMENT_ERROR,
    SCALING,
    Measurement,
    Source,
    SpeedEvidence,
    speed_table,
    speed_tables,
    standard_errors,
)
from stretto.estimate.throughput import ThroughputModel, grad_s, step_s
from stretto.model import Cluster, GpuType, cluster_of

CLUSTER = cluster_of("two", (GpuType("t4"), 2, 4), (GpuType("a100", speed=3.0), 2, 8))
NOTHING = SpeedEvidence((), 0, 0, (), (), 1, 2, 16)
BATCH = 64
MODEL = ThroughputModel(0.02, 0.001, 0.09, 0.006, 0.01, 0.002, 1.6)


def measured(workers: int, kind: int = 0, nodes: int = 1, batch: int = BATCH) -> Measurement:
    """What a job of the model would measure with a share of the batch on each worker."""
    local = -(-batch // workers)
    times = float(grad_s(MODEL, local)), float(step_s(MODEL, nodes, workers, local))
    return Measurement(kind, nodes, workers, local, 1, *times)


def evidence(*measurements: Measurement, **more: object) -> SpeedEvidence:
    return replace(NOTHING, **{"measurements": measurements, "batch": BATCH, "largest_batch": BATCH, **more})  # type: ignore[arg-type]


def flat(workers: int, step: float = 0.1) -> Measurement:
    """A step takes as long on any number of workers."""
    local = -(-BATCH // workers)
    return Measurement(0, 1, workers, local, 1, 0.9 * step / workers, step)


def per_s(
    given: SpeedEvidence, gpus: int, kind: int = 0, spread: bool = False, cluster: Cluster = CLUSTER
) -> float:
    return float(speed_table(given, cluster).both[int(spread), kind, gpus])


def source(given: SpeedEvidence, gpus: int, kind: int = 0, spread: bool = False) -> Source:
    return Source(int(speed_table(given, CLUSTER).source[int(spread), kind, gpus]))


def test_of_a_job_that_nobody_measured_the_curve_is_assumed_and_relative_to_what_it_asks_for() -> None:
    table = speed_table(NOTHING, CLUSTER)
    assert table.is_relative
    assert table.speeds.per_s[0, [0, 1, 2, 4]] == pytest.approx([0, 1 / (2 * SCALING), 1, 2 * SCALING])
    assert table.speeds.per_s[1] == pytest.approx(3 * table.speeds.per_s[0])
    assert (table.source == Source.ASSUMED).all()
    assert np.isnan(standard_errors(NOTHING, CLUSTER)).all()


def test_where_its_owner_expects_a_speed_the_curve_goes_through_that() -> None:
    table = speed_table(replace(NOTHING, stated_per_s=7.0), CLUSTER)
    assert not table.is_relative
    assert table.speeds.per_s[0, [2, 4]] == pytest.approx([7, 7 * 2 * SCALING])
    assert (table.source == Source.ASSUMED).all()


def test_one_measured_speed_anchors_the_assumed_curve() -> None:
    one = evidence(measured(1))
    single = 1 / measured(1).step_s
    assert per_s(one, 1) == pytest.approx(single)
    assert per_s(one, 4) == pytest.approx(single * 4 * SCALING**2)
    assert (source(one, 1), source(one, 4)) == (Source.MEASURED, Source.ASSUMED)
    assert per_s(one, 1, kind=1) == pytest.approx(3 * single), "another type by its stated speed"
    assert source(one, 1, kind=1) is Source.ASSUMED


def test_a_job_that_was_measured_on_several_workers_is_fitted_between_and_beyond_them() -> None:
    known = evidence(*(measured(count, 1, 1 + (count > 8)) for count in (1, 2, 4, 8, 16)))
    true = [1 / measured(count, 1, 1 + (count > 8)).step_s for count in range(1, 17)]
    table = speed_table(known, CLUSTER)
    assert table.speeds.per_s[1, 1:9] == pytest.approx(true[:8], rel=0.08)
    assert table.speeds.per_s[1, 9:] == pytest.approx(true[8:], rel=0.35), "of several nodes only 16 is known"
    assert table.source[0, 1, [1, 2, 3, 4, 8, 12, 16]].tolist() == [2, 2, 1, 2, 2, 1, 2]
    assert not table.is_relative


@pytest.mark.parametrize("gpus", [1, 2, 4])
def test_what_was_measured_is_shown_as_it_was_measured(gpus: int) -> None:
    noisy = [
        Measurement(0, 1, count, 64 // count, 1, 0.05, 0.06 + 0.01 * (count == 2)) for count in (1, 2, 4)
    ]
    assert per_s(evidence(*noisy), gpus) == pytest.approx(1 / noisy[gpus // 2].step_s)
    assert source(evidence(*noisy), gpus) is Source.MEASURED


def test_a_job_that_does_not_scale_is_shown_so() -> None:
    known = evidence(flat(1), flat(2))
    assert per_s(known, 2) == pytest.approx(per_s(known, 1))
    assert per_s(known, 4) < 1.5 * per_s(known, 1) < per_s(evidence(flat(1)), 4)


def test_placements_on_several_nodes_have_speeds_of_their_own() -> None:
    known = evidence(measured(1), measured(2), measured(2, nodes=2))
    assert per_s(known, 2) == pytest.approx(1 / measured(2).step_s)
    assert per_s(known, 2, spread=True) == pytest.approx(1 / measured(2, nodes=2).step_s)
    assert per_s(known, 3, spread=True) < per_s(known, 3)
    assert per_s(known, 6) == pytest.approx(per_s(known, 6, spread=True)), "six do not fit on a node of four"


def test_scaling_is_carried_over_to_a_type_on_which_only_one_worker_ran() -> None:
    known = evidence(flat(1), flat(2), flat(4), replace_kind(flat(1, step=0.02), 1))
    ratio = per_s(known, 1, 1) / per_s(known, 1)
    assert ratio == pytest.approx(5)
    assert per_s(known, 4, 1) == pytest.approx(ratio * per_s(known, 4))
    assert source(known, 4, 1) is Source.FITTED
    assert per_s(evidence(flat(1), flat(2)), 2, 1) == pytest.approx(3 * per_s(evidence(flat(1), flat(2)), 2))


def replace_kind(measurement: Measurement, kind: int) -> Measurement:
    return measurement._replace(kind=kind)


def test_another_batch_than_its_own_says_how_fast_it_would_be_and_is_no_measurement_of_it() -> None:
    others = evidence(*(measured(count, batch=batch) for count in (1, 2) for batch in (128, 256)))
    assert source(others, 2) is Source.FITTED
    assert per_s(others, 2) == pytest.approx(1 / measured(2).step_s, rel=0.1)


def test_passes_of_the_size_that_its_batch_is_made_up_of_are_measurements_of_it() -> None:
    one_pass = Measurement(0, 1, 1, 32, 1, 0.10, 0.12)
    known = evidence(one_pass, max_local=(32, 32))
    assert per_s(known, 1) == pytest.approx(1 / 0.22)
    assert source(known, 1) is Source.MEASURED


def test_a_batch_that_grows_with_the_workers_is_compared_at_what_it_grows_to() -> None:
    step = Measurement(0, 1, 4, 64, 1, 0.1, 0.1)
    assert per_s(evidence(step, largest_batch=256), 4) == pytest.approx(40)
    assert source(evidence(step, largest_batch=256), 4) is Source.MEASURED
    assert source(evidence(step), 4) is Source.FITTED


def test_a_profile_of_one_worker_anchors_every_type_that_it_names() -> None:
    known = evidence(single_per_s=(640.0, 0.0))
    assert per_s(known, 1) == pytest.approx(10)
    assert per_s(known, 1, kind=1) == pytest.approx(30)
    assert (source(known, 1), source(known, 1, kind=1)) == (Source.FITTED, Source.ASSUMED)


def test_a_type_on_which_the_model_does_not_run_has_no_speed() -> None:
    table = speed_table(evidence(measured(1), max_local=(64, 0)), CLUSTER)
    assert np.isnan(table.speeds.per_s[1, 1:]).all()
    assert np.isfinite(table.speeds.per_s[0]).all()


def test_workers_of_two_gpus_are_counted_by_two() -> None:
    known = evidence(measured(1), measured(2), gpus_per_worker=2)
    assert per_s(known, 2) == pytest.approx(1 / measured(1).step_s)
    assert per_s(known, 4) == pytest.approx(1 / measured(2).step_s)
    assert per_s(known, 3) == pytest.approx((per_s(known, 2) + per_s(known, 4)) / 2)


def test_errors_are_those_of_measurements_or_of_the_fit_and_nobody_claims_one_for_what_is_assumed() -> None:
    exact = [measured(count) for count in (1, 2, 3, 4)]
    noisy = [
        each._replace(step_s=each.step_s * factor)
        for each, factor in zip(exact, (1, 1.4, 0.8, 1.3), strict=True)
    ]
    error = {
        name: standard_errors(evidence(*each), CLUSTER) for name, each in (("exact", exact), ("noisy", noisy))
    }
    assert error["exact"][0, 0, 4] == MEASUREMENT_ERROR
    assert error["exact"][0, 0, 8] < error["noisy"][0, 0, 8] < 2
    assert np.isnan(error["exact"][0, 1]).all()


@given(
    st.lists(
        st.builds(
            Measurement,
            st.integers(0, 1), st.integers(0, 3), st.integers(1, 40),
            st.integers(0, 2**53), st.integers(0, 2**53),
            st.floats(0, 2.0**53), st.floats(0, 2.0**53),
        ),
        max_size=5,
    ),
    st.integers(1, 2**53), st.integers(0, 2**53), st.sampled_from([1, 2, 3]),
)  # fmt: skip
def test_whatever_workers_report_the_table_has_a_speed_for_every_count(
    measurements: list[Measurement], batch: int, largest: int, each: int
) -> None:
    known = evidence(*measurements, batch=batch, largest_batch=largest, gpus_per_worker=each, asked_gpus=each)
    (table,) = speed_tables([known], CLUSTER)
    assert np.isfinite(table.both).all()
    assert (table.both[..., 1:] > 0).all()
    assert speed_table(replace(known, measurements=tuple(measurements)), CLUSTER) is table
