import numpy as np
import pytest

from stretto.policies.ones.batch_limits import (
    BatchLimits,
    Trained,
    after_epochs,
    after_rejection,
    arrival_rate_per_s,
)

BOUNDS = (np.array([64]), np.array([65_536]))


def limits(limit: int, reference: float = np.nan, epochs: int = 0) -> BatchLimits:
    return BatchLimits(np.array([limit]), np.array([reference]), np.array([epochs]))


def moved(
    before: BatchLimits, executed_s: float, epochs: int = 1, runs: bool = True, **rest: bool
) -> BatchLimits:
    trained = Trained(np.array([epochs]), np.array([executed_s]), np.array([runs]))
    return after_epochs(before, trained, 0.01, BOUNDS, **rest)


@pytest.mark.parametrize(
    ("executed_s", "limit"), [(50.0, 2048), (100.0, 1024), (101.0, 683), (250.0, 512), (1000.0, 187)]
)
def test_a_limit_doubles_until_the_job_has_run_for_1_over_sigma_and_shrinks_then(
    executed_s: float, limit: int
) -> None:
    assert moved(limits(1024), executed_s).limit.tolist() == [limit]


def test_shrinking_starts_from_the_limit_that_the_job_had_then() -> None:
    at_100 = moved(limits(1024), 100.0)
    at_250 = moved(at_100, 250.0, epochs=2)
    assert (at_100.limit.tolist(), at_250.limit.tolist()) == ([1024], [512])
    assert moved(at_250, 1000.0, epochs=3).limit.tolist() == [187]


def test_compounding_shrinks_what_was_shrunk_before() -> None:
    at_250 = moved(limits(1024), 250.0, compounding=True)
    assert moved(at_250, 250.0, epochs=2, compounding=True).limit.tolist() == [256]


@pytest.mark.parametrize(
    ("before", "executed_s", "epochs", "runs", "limit"),
    [
        pytest.param(1024, 50.0, 0, True, 1024, id="no epoch has ended"),
        pytest.param(1024, 50.0, 1, False, 1024, id="a waiting job keeps its limit"),
        pytest.param(1024, 50.0, 5, True, 2048, id="several epochs at once double it once"),
        pytest.param(60_000, 50.0, 1, True, 65_536, id="no further than the largest"),
        pytest.param(70, 1000.0, 1, True, 64, id="no lower than what it started with"),
    ],
)
def test_the_limit_of_a_job(before: int, executed_s: float, epochs: int, runs: bool, limit: int) -> None:
    assert moved(limits(before), executed_s, epochs, runs).limit.tolist() == [limit]


def test_while_nobody_waits_a_long_job_grows_and_what_it_has_grown_to_is_what_shrinks() -> None:
    alone = moved(limits(1024), 250.0, crowded=False)
    assert alone.limit.tolist() == [2048]
    assert np.isnan(alone.reference).all()
    shrunk = moved(alone, 500.0, epochs=2)
    assert shrunk.limit.tolist() == [683]  # ⌈2 · 2048 / 6⌉
    assert moved(shrunk, 600.0, epochs=3, crowded=False).limit.tolist() == [1366]


def test_a_rejected_job_may_ask_for_half_but_not_below_its_start() -> None:
    before = BatchLimits(np.array([1001, 80, 512]), np.full(3, np.nan), np.zeros(3, dtype=np.int64))
    after = after_rejection(before, np.array([True, True, False]), np.full(3, 64))
    assert after.limit.tolist() == [501, 64, 512]


def test_the_arrival_rate_needs_two_arrivals_at_different_times() -> None:
    assert arrival_rate_per_s(1, 0.0, 50.0) == 0.0
    assert arrival_rate_per_s(2, 50.0, 50.0) == 0.0
    assert arrival_rate_per_s(6, 100.0, 200.0) == pytest.approx(0.05)
