import math

import numpy as np
import pytest

from stretto.estimate.throughput import (
    Choice,
    Known,
    Mode,
    Source,
    ThroughputModel,
    perfectly_scaled,
    source_of,
    throughput,
    without_sync,
)

A, B, C = range(3)
NAN = math.nan


def known(
    several: tuple[int, int, int] = (0, 0, 0),
    alone: tuple[int, int, int] = (0, 0, 0),
    single_per_s: tuple[float, float, float] = (100.0, 250.0, 50.0),
) -> Known:
    return Known(several, alone, single_per_s, gpus_per_node=(4, 8, 8))


def test_speeds_carry_over_by_the_ratio_on_one_gpu() -> None:
    source = source_of(B, known(several=(1, 0, 0), alone=(1, 0, 0)))
    assert source == Source(A, 2.5, perfect=False)
    assert source.ratio * 320 == 800


def test_before_several_gpus_were_tried_scaling_is_perfect() -> None:
    assert source_of(A, known(alone=(1, 0, 0))) == Source(A, 1.0, perfect=True)
    assert perfectly_scaled(100.0, np.array([2])).tolist() == [200.0]


@pytest.mark.parametrize(
    ("seen", "mode", "choice", "expected"),
    [
        pytest.param(
            known(several=(2, 1, 0)), "bootstrap", "most", Source(B, 1.0, False), id="own model first"
        ),
        pytest.param(
            known(several=(2, 0, 5), alone=(1, 1, 1)), "bootstrap", "most", Source(C, 5.0, False),
            id="else of the type with most points on several GPUs, even if it ran on one GPU here",
        ),
        pytest.param(
            known(several=(2, 0, 2)), "bootstrap", "most", Source(C, 5.0, False),
            id="then of the nearest node size",
        ),
        pytest.param(
            known(several=(2, 0, 5)), "bootstrap", "first", Source(A, 2.5, False),
            id="or of the first type with a model",
        ),
        pytest.param(
            known(several=(2, 0, 0), alone=(1, 1, 0)), "bootstrap", "first", Source(B, 1.0, True),
            id="where a model of one GPU counts as a model",
        ),
        pytest.param(
            known(several=(2, 0, 0), single_per_s=(NAN, 250.0, 50.0)), "bootstrap", "most",
            Source(A, 1.0, False), id="a type not profiled counts as equal",
        ),
        pytest.param(
            known(), "bootstrap", "most", Source(B, 1.0, True), id="its profile is better than nothing"
        ),
        pytest.param(
            known(single_per_s=(NAN,) * 3), "bootstrap", "most", None, id="nothing known, nothing believed"
        ),
        pytest.param(
            known(alone=(1, 0, 0), single_per_s=(NAN,) * 3), "bootstrap", "most", Source(A, 1.0, True),
            id="without profiles the type it runs on stands in",
        ),
        pytest.param(
            known(several=(2, 0, 0)), "no-prof", "most", Source(A, 1.0, True),
            id="without profiling types are equal and scaling is perfect",
        ),
        pytest.param(known(), "no-prof", "most", None, id="without profiling nothing is known of a new job"),
        pytest.param(
            known(several=(9, 0, 0), alone=(1, 1, 0)), "oracle", "most", Source(B, 1.0, False),
            id="to the oracle a model of one GPU is right where a type has no more",
        ),
        pytest.param(
            known(several=(9, 0, 0)), "oracle", "most", Source(A, 2.5, False),
            id="what even the oracle was not shown is carried over",
        ),
        pytest.param(
            known(alone=(1, 0, 0)), "bootstrap", "most", Source(A, 2.5, True),
            id="a job that ran on one GPU elsewhere scales perfectly from there",
        ),
    ],
)  # fmt: skip
def test_type_b_is_estimated_from(seen: Known, mode: str, choice: str, expected: Source | None) -> None:
    assert source_of(B, seen, Mode(mode), Choice(choice)) == expected


def test_without_synchronising_throughput_grows_with_the_gpus() -> None:
    model = np.array(ThroughputModel(0.05, 0.001, 0.08, 0.004, 0.02, 0.002, 2.0))
    speeds = throughput(without_sync(model), np.array([1, 1, 4]), np.array([1, 4, 16]), 64)
    assert speeds == pytest.approx(speeds[0] * np.array([1, 4, 16]), rel=1e-6)
