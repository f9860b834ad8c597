"""Gavel runs jobs on GPU types so that their speeds become known, where that is asked for."""

from math import nan
from typing import Any

import numpy as np
import pytest
from tests.sim.made_worlds import seen

from stretto.model import Adaptivity, GpuType, MeasuredSpeeds, Shares, Why, cluster_of
from stretto.policies.common.admission import NO_CONFIGURATIONS
from stretto.policies.gavel.policy import Gavel
from stretto.sim.settings import SimSettings
from stretto.testing.builders import a_job, a_snapshot, grant, speeds_of
from stretto.traces.workload import Truth, Workload

ROUND_S = 360.0
OLD_AND_NEW = cluster_of("two", (GpuType("old"), 1, 1), (GpuType("new", speed=3.0), 1, 1))
TRIES = Gavel(profile_rounds=1)


def tables(per_s: Any, measured: Any = None) -> list[MeasuredSpeeds]:
    """On one GPU of each type, by job."""
    marks = (
        [None] * len(per_s)
        if measured is None
        else [np.array([[0, mark] for mark in of]) > 0 for of in measured]
    )
    both = [np.array([[nan, speed] for speed in row]) for row in per_s]
    return [MeasuredSpeeds(rows, rows, of) for rows, of in zip(both, marks, strict=True)]


def decided(
    policy: Gavel,
    per_s: Any,
    before: Shares | None = None,
    held: Any = None,
    measured: Any = None,
    now_s: float = 0.0,
    **jobs: Any,
) -> Shares:
    """What so many jobs of one GPU are given; held: the type of each since the decision before."""
    rates = np.array(per_s, dtype=np.float64)
    names = [str(row) for row in range(len(rates))]
    snapshot = a_snapshot(
        *(a_job(name, **jobs) for name in names),
        cluster=OLD_AND_NEW,
        allocations={
            name: grant(kind, **{f"n{kind}": 1})
            for name, kind in zip(names, held or (), strict=False)
            if kind >= 0
        },
        memory=None if before is None else before.memory,
        now_s=now_s,
        known_tables=tables(per_s, measured),
    )
    blank = np.zeros((len(rates), 0))
    speeds = speeds_of(NO_CONFIGURATIONS, blank, types=rates.shape[1], requested_per_s=rates)
    return policy.allocate(snapshot.limited_to(policy.views), speeds)


def rounds_of(policy: Gavel, per_s: Any, count: int, **jobs: Any) -> list[tuple[list[int], list[bool]]]:
    """(type of each job, whether it is profiled there), round by round."""
    found: list[tuple[list[int], list[bool]]] = []
    shares: Shares | None = None
    for number in range(count):
        held = None if shares is None else shares.kind.tolist()
        shares = decided(policy, per_s, shares, held, now_s=number * ROUND_S, **jobs)
        assert shares.profiling is not None
        found.append((shares.kind.tolist(), shares.profiling.tolist()))
    return found


def test_each_job_runs_a_round_on_each_type_and_then_where_it_does_most() -> None:
    # By what is stated all would be three times as fast on the new type. The first is not.
    assert rounds_of(TRIES, [[10, 10], [1, 12]], 4) == [
        ([0, 1], [True, True]),
        ([1, 0], [True, True]),
        ([0, 1], [False, False]),
        ([0, 1], [False, False]),
    ]


def test_a_job_that_waits_to_be_tried_is_told_so_and_not_that_it_is_worth_less() -> None:
    shares = decided(TRIES, [[10, 10], [1, 12], [5, 5]])
    assert shares.gpus.tolist() == [1, 1, 0]
    assert shares.why.code[2] == Why.NO_FREE_GPUS


def test_without_it_no_type_is_tried() -> None:
    assert decided(Gavel(), [[10, 10], [1, 12]]).profiling is None


def test_speeds_that_were_not_tried_do_not_count() -> None:
    first = decided(TRIES, [[10, 10], [1, 12], [5, 5]])
    held = [0, 1]
    told = [
        decided(TRIES, per_s, first, held, now_s=ROUND_S)
        for per_s in ([[10, 10], [1, 12], [5, 5]], [[10, 99], [88, 12], [7, 6]])
    ]
    assert told[0].kind.tolist() == told[1].kind.tolist()
    assert told[0].memory.per_s.tolist() == told[1].memory.per_s.tolist()
    known, by_type = told[0].memory.per_s[0].tolist(), told[0].memory.per_s[1].tolist()
    assert known == [10.0, 30.0], "on the old type as it was, on the new one as is stated"
    assert by_type == [4.0, 12.0]
    assert told[0].memory.per_s[2].tolist() == [0.0, 0.0], "of the last nothing is known"


@pytest.mark.parametrize(
    ("measured", "profiled"),
    [
        pytest.param([[0, 0], [0, 0]], [True, True], id="nothing was measured"),
        pytest.param([[1, 1], [1, 1]], [False, False], id="all was, of other jobs of their models"),
        pytest.param([[1, 0], [1, 1]], [True, False], id="one type of the first is missing"),
    ],
)
def test_where_a_world_measures_a_type_that_was_measured_needs_no_run(
    measured: list[list[int]], profiled: list[bool]
) -> None:
    shares = decided(TRIES, [[1.0, 3.0], [1.0, 3.0]], measured=measured)
    assert shares.profiling is not None
    assert shares.profiling.tolist() == profiled
    if profiled == [True, False]:
        assert shares.kind.tolist() == [1, 0]


def test_a_job_that_reports_nothing_is_done_with_after_its_rounds() -> None:
    nothing, shares = [[0, 0]], decided(TRIES, [[1.0, 3.0]], measured=[[0, 0]])
    profiled = []
    for number in range(1, 4):
        shares = decided(
            TRIES, [[1.0, 3.0]], shares, shares.kind.tolist(), measured=nothing, now_s=number * ROUND_S - 5.0
        )
        assert shares.profiling is not None
        profiled += shares.profiling.tolist()
    assert profiled == [True, False, False], (
        "a service decides a moment late, and a round counts all the same"
    )


def test_a_job_that_may_not_be_stopped_is_not_tried() -> None:
    shares = decided(TRIES, [[10, 10]], preemptible=False)
    assert shares.profiling is not None
    assert (shares.kind.tolist(), shares.profiling.tolist()) == ([1], [False]), "the stated speeds count"


def test_in_a_simulation_it_costs_rounds_and_leads_to_what_would_have_been_known() -> None:
    cluster = cluster_of("mixed", (GpuType("t4"), 1, 1), (GpuType("v100"), 1, 1))
    names = ("resnet18-cifar10", "bert-squad")  # the second gains by the fast type, the first does not
    jobs = [a_job(name, model=name, adaptivity=Adaptivity.RIGID) for name in names]
    workload = Workload("two", jobs, [Truth(nan)] * 2)
    runs = [seen(Gavel(profile_rounds=rounds), workload, cluster, SimSettings()) for rounds in (0, 1)]
    kinds = [[snapshot.jobs.held_kind.tolist() for snapshot in run.snapshots] for run in runs]
    assert kinds[0][1:5] == [[0, 1]] * 4
    assert kinds[1][1:5] == [[0, 1], [1, 0], [0, 1], [0, 1]]
    assert [run.world.accounting.profiled_s.tolist() for run in runs] == [[0.0, 0.0], [720.0, 720.0]]
    for name in names:
        known_s, tried_s = (run.completed_s(name) for run in runs)
        assert known_s < tried_s < known_s + 2 * ROUND_S
