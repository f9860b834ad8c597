"""What a round looks at: work in proportion to what changed, counted and not timed."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stretto.estimate.estimators import NoEstimate
from stretto.model import Requests, Snapshot, Why, no_speeds
from stretto.place import draft as drafts
from stretto.place.consolidate import Consolidated
from stretto.place.fill import rows_to_settle
from stretto.place.free_nodes import FreeNodes
from stretto.policies.common.admission import NO_CONFIGURATIONS, AskedAndFree, admit_waiting
from stretto.policies.fifo import FirstInFirstOut
from stretto.scheduler.check import check_shares
from stretto.scheduler.components import Scheduler, propose
from stretto.scheduler.constraints.whole_workers import show_one_size
from stretto.testing.builders import a_cluster, a_job, a_snapshot, grant

CLUSTER = a_cluster(8, 8, 8)


def running(jobs: int, waiting: int = 0) -> Snapshot:
    """So many jobs of one GPU each that run on the first nodes, and some that wait."""
    names = [f"j{number:02}" for number in range(jobs + waiting)]
    held = {name: grant(0, **{f"n{place}": 1}) for place, name in enumerate(names[:jobs])}
    return a_snapshot(*map(a_job, names), cluster=CLUSTER, allocations=held)


def test_where_nothing_waits_the_shares_are_the_columns_of_what_is_held() -> None:
    snapshot = running(3)
    shares = admit_waiting(snapshot, np.zeros(0, dtype=np.int64), skip=False)
    assert shares.gpus is snapshot.jobs.held_gpus
    assert shares.kind is snapshot.jobs.held_kind
    assert shares.keep_all(snapshot.jobs)
    assert shares.order is not None
    assert shares.order.tolist() == [0, 1, 2]
    assert not shares.why.code.any()
    assert not shares.why.evidence


def test_shares_that_keep_all_are_neither_compared_nor_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = running(3)
    shares = admit_waiting(snapshot, np.zeros(0, dtype=np.int64), skip=False)

    def refuse(*_: Any) -> None:
        raise AssertionError("rows are looked at although nothing changes")

    monkeypatch.setattr("stretto.scheduler.check.check_range", refuse)
    monkeypatch.setattr("stretto.scheduler.check.holdable_gpus", refuse)
    check_shares(snapshot, shares)
    assert rows_to_settle(snapshot, shares) == ([], set())
    assert Consolidated().place(snapshot, shares) is snapshot.placement


@pytest.mark.parametrize(("waiting", "groupings"), [(1, 0), (3, 1)])
def test_nodes_are_grouped_for_the_second_job_only(
    monkeypatch: pytest.MonkeyPatch, waiting: int, groupings: int
) -> None:
    made: list[Any] = []

    class Counted(FreeNodes):
        def __init__(self, *given: Any) -> None:
            made.append(given)
            super().__init__(*given)

    monkeypatch.setattr(drafts, "FreeNodes", Counted)
    snapshot = running(1, waiting)
    shares = admit_waiting(snapshot, np.arange(1, 1 + waiting), skip=False)
    placement = Consolidated().place(snapshot, shares)
    assert [allocation.nodes for allocation in placement.values()] == [(0,)] * (1 + waiting)
    assert len(made) == groupings


def test_words_of_those_that_wait_are_not_made_where_one_finds_no_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Five of eight GPUs are held on each node: a job of eight gets a share, and no node has room for it."""
    held = {f"j{place}": grant(0, **{f"n{place}": 5}) for place in range(3)}
    jobs = [a_job(name, 5) for name in held]
    snapshot = a_snapshot(*jobs, a_job("large", 8), a_job("larger", 16), cluster=CLUSTER, allocations=held)

    def refuse(*_: Any) -> None:
        raise AssertionError("words are made although nobody reads them")

    with monkeypatch.context() as patched:
        patched.setattr(AskedAndFree, "__getitem__", refuse)
        plan = propose(snapshot, Scheduler(NoEstimate(), FirstInFirstOut(), Consolidated()))
    assert [plan.why.of(row) for row in (3, 4)] == [Why.FRAGMENTED, Why.NO_FREE_GPUS]
    assert plan.why.evidence[4] == "asks 16 GPUs, 1 free"


def test_speeds_that_no_policy_reads_are_not_made() -> None:
    speeds = no_speeds(5, 2, NO_CONFIGURATIONS)
    assert not [value for value in vars(speeds).values() if isinstance(value, np.ndarray)]
    assert speeds.observed_gpus.shape == (5, 2)
    assert np.isnan(speeds.requested_per_s).all()
    assert speeds.per_s.shape == (5, 0)


def test_what_holds_for_no_job_of_a_world_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up: list[str] = []
    usual = Requests.computed

    def computed(requests: Requests, column: Any) -> Any:
        looked_up.append(column.name)
        return usual(requests, column)

    monkeypatch.setattr(Requests, "computed", computed)
    snapshot = running(2, 2)
    later = [running_again(snapshot) for _ in range(5)]
    assert all(show_one_size(one) is one for one in later)
    assert looked_up.count("varies_by_type") == 1
    assert not any("varies_by_type" in vars(one.jobs) for one in later)


def running_again(snapshot: Snapshot) -> Snapshot:
    """The next moment of the same world, in which nothing of a table is known yet."""
    return replace(snapshot, jobs=replace(snapshot.jobs, held_gpus=snapshot.jobs.held_gpus.copy()))
