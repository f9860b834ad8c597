"""Speeds are worked out for what is asked and for what is new; the work is counted."""

import gc
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stretto.estimate import beliefs, fit, goodput, goodput_table
from stretto.estimate.estimators import OnlineGoodput
from stretto.estimate.goodput_table import GoodputTable
from stretto.estimate.throughput import ThroughputModel, step_s
from stretto.model import (
    NOTHING_OBSERVED,
    Cluster,
    Evidence,
    GpuType,
    MeasuredSpeeds,
    Observations,
    Point,
    Snapshot,
    TrainingLimits,
    cluster_of,
    powers_and_whole_nodes,
)
from stretto.testing.builders import a_job, a_snapshot

CLUSTER = cluster_of("mixed", (GpuType("A"), 4, 4), (GpuType("B"), 2, 8))
COLUMNS = powers_and_whole_nodes(CLUSTER)
MODEL = ThroughputModel(0.05, 0.004, 0.08, 0.006, 0.03, 0.004, 1.6)
LIMITS = TrainingLimits(
    init_batch=32,
    max_batch=4096,
    min_local=np.array([8, 8]),
    max_local=np.array([64, 256]),
    single_per_s=np.array([100.0, 250.0]),
    replica_gpus=np.ones(2, dtype=np.int64),
    restart_s=30.0,
    reach_gpus=512,
)


def seen(pace: float, *gpus: int) -> Observations:
    points = []
    for count in gpus:
        whole_s = pace * float(step_s(MODEL, 1, count, 32))
        points.append(Point(1, count, 32, 0.9 * whole_s, whole_s))
    return Observations(tuple(points))


def shown(pace: float, var: float = 20.0, also: Sequence[int] = ()) -> Evidence:
    on_b = seen(pace, *also) if also else NOTHING_OBSERVED
    return Evidence(LIMITS, (seen(pace, 1, 2), on_b), 1.0, var)


def snapshot_of(evidence: Sequence[Evidence | None], cluster: Cluster = CLUSTER, **views: Any) -> Snapshot:
    jobs = [a_job(f"j{row:03d}", gpus=2) for row in range(len(evidence))]
    return a_snapshot(*jobs, cluster=cluster, known_evidence=list(evidence), **views)


class Counted:
    """How many data sets were fitted, and how many cells searched for the best batch."""

    fits = 0
    cells = 0


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    work = Counted()

    def fitting(observed: Any) -> Any:
        work.fits += len(set(observed))
        return fit.fit_many(observed)

    def searching(*given: Any, wanted: Any, **named: Any) -> Any:
        work.cells += int(wanted.sum())
        return goodput.best_batches(*given, wanted=wanted, **named)

    monkeypatch.setattr(beliefs, "fit_many", fitting)
    monkeypatch.setattr(goodput_table, "best_batches", searching)
    return work


def test_only_cells_that_a_policy_looks_at_are_worked_out(counted: Counted) -> None:
    speeds = OnlineGoodput().estimate(snapshot_of([shown(1.0), shown(2.0)]), COLUMNS)
    assert counted.cells == 0
    few = speeds.at(np.array([0, 1, 1]), np.array([1, 1, 3]))
    assert counted.cells == 3
    speeds.at(np.array([1, 0]), np.array([3, 1]))
    assert counted.cells == 3
    assert few.tolist() == speeds.per_s[[0, 1, 1], [1, 1, 3]].tolist()
    assert speeds.on_request(np.array([1]), np.array([0])).tolist() == [speeds.requested_per_s[1, 0]]


def test_a_round_costs_what_is_new_in_it(counted: Counted) -> None:
    estimator, evidence = OnlineGoodput(), [shown(1.0 + row / 100) for row in range(30)]
    rows, columns = np.arange(30), np.full(30, 2)
    estimator.estimate(snapshot_of(evidence), COLUMNS).at(rows, columns)
    assert (counted.fits, counted.cells) == (30, 30)
    # Nothing is new.
    estimator.estimate(snapshot_of(evidence), COLUMNS).at(rows, columns)
    assert (counted.fits, counted.cells) == (30, 30)
    # One job reports another gradient noise, which says nothing new of its speed.
    evidence[7] = replace(evidence[7], grad_var=5.0)
    estimator.estimate(snapshot_of(evidence), COLUMNS).at(rows, columns)
    assert (counted.fits, counted.cells) == (30, 31)
    # One has run on another type: only that is fitted.
    evidence[8] = shown(1.08, also=[1, 4])
    estimator.estimate(snapshot_of(evidence), COLUMNS).at(rows, columns)
    assert (counted.fits, counted.cells) == (31, 32)


@pytest.mark.parametrize("seed", range(3))
def test_speeds_do_not_depend_on_what_was_asked_before_or_in_which_order(seed: int) -> None:
    rng, estimator = np.random.default_rng(seed), OnlineGoodput()
    known = [shown(1.0 + row / 10) for row in range(6)]
    for _ in range(12):  # jobs come, go, come back, change places and ask for other numbers of GPUs
        which = rng.choice(6, rng.integers(1, 7), replace=bool(rng.random() < 0.3)).tolist()
        jobs = [a_job(f"j{row:03d}", gpus=int(rng.integers(1, 4))) for row in range(len(which))]
        now = a_snapshot(*jobs, cluster=CLUSTER, known_evidence=[known[one] for one in which])
        given, anew = estimator.estimate(now, COLUMNS), OnlineGoodput().estimate(now, COLUMNS)
        assert np.array_equal(given.per_s, anew.per_s, equal_nan=True)
        assert np.array_equal(given.requested_per_s, anew.requested_per_s, equal_nan=True)


def test_jobs_that_have_shown_the_same_are_fitted_and_worked_out_once(counted: Counted) -> None:
    alike = [Evidence(LIMITS, (seen(1.0, 1, 2), NOTHING_OBSERVED), 1.0, 20.0) for _ in range(40)]
    speeds = OnlineGoodput().estimate(snapshot_of(alike), COLUMNS)
    assert len(set(speeds.at(np.arange(40), np.full(40, 2)).tolist())) == 1
    assert (counted.fits, counted.cells) == (1, 1)


def test_what_was_not_asked_for_lately_is_forgotten_and_worked_out_again_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts: list[int] = []  # of rows that are kept, after each question
    rows_of = GoodputTable.rows_of

    def counting(table: GoodputTable, *given: Any) -> Any:
        rows = rows_of(table, *given)
        counts.append(table.count)
        return rows

    monkeypatch.setattr(GoodputTable, "rows_of", counting)
    estimator = OnlineGoodput()
    first = [shown(1.0), None]
    table = MeasuredSpeeds(np.full((2, 33), 7.0), np.full((2, 33), 6.0))
    views: dict[str, Any] = {"known_tables": [table, table]}
    before = estimator.estimate(snapshot_of(first, **views), COLUMNS)
    whole = before.per_s.copy()
    for many in range(8):  # each with as many jobs as there was room for at first
        crowd = [shown(2.0 + row / 1000, var=many + 1.0) for row in range(goodput_table.FIRST_ROOM)]
        estimator.estimate(snapshot_of(crowd), COLUMNS).at(np.arange(len(crowd)), np.full(len(crowd), 1))
    assert max(counts) <= 4 * goodput_table.FIRST_ROOM < 8 * goodput_table.FIRST_ROOM
    assert counts[-1] < max(counts)
    again = estimator.estimate(snapshot_of(first, **views), COLUMNS)
    assert np.array_equal(again.per_s, whole, equal_nan=True)
    assert np.array_equal(before.at(np.zeros(4, dtype=np.int64), np.arange(4)), whole[0, :4])


def test_what_an_estimator_changes_in_speeds_holds_for_every_way_to_read_them() -> None:
    speeds = OnlineGoodput().estimate(snapshot_of([shown(1.0), shown(2.0)]), COLUMNS)
    half = replace(speeds, per_s=speeds.per_s / 2)
    assert half.at(np.array([0, 1]), np.array([2, 2])).tolist() == (speeds.per_s[:, 2] / 2).tolist()
    assert half.on_request(np.array([1]), np.array([1])).tolist() == [speeds.requested_per_s[1, 1]]


def test_evidence_that_is_made_anew_each_time_is_not_kept_alive(counted: Counted) -> None:
    estimator, observed = OnlineGoodput(), (seen(1.0, 1, 2), NOTHING_OBSERVED)
    speeds = set[float]()
    for _ in range(2_000):
        now = snapshot_of([Evidence(LIMITS, observed, 1.0, 20.0)])
        speeds.add(float(estimator.estimate(now, COLUMNS).at(np.array([0]), np.array([2]))[0]))
    alive = [found for found in gc.get_objects() if type(found) is Evidence and found.observed is observed]
    assert len(alive) < 1_000
    assert len(speeds) == 1
    assert (counted.fits, counted.cells) == (1, 1), "it is found by its content"


def test_a_table_of_speeds_keeps_its_row_while_evidence_is_made_anew() -> None:
    estimator, observed = OnlineGoodput(), (seen(1.0, 1, 2), NOTHING_OBSERVED)
    table = MeasuredSpeeds(np.full((2, 33), 7.0), np.full((2, 33), 6.0))
    rows = set[int]()
    for number in range(2_000):
        both = [Evidence(LIMITS, observed, 1.0, 20.0), None]
        # Now and then nobody asks about the table.
        shows = both if number % 3 else both[:1]
        given = estimator.estimate(snapshot_of(shows, known_tables=[table] * len(shows)), COLUMNS)
        assert given.origin is not None
        rows |= {*given.origin[1][1:].tolist()}
    assert len(rows) == 1
