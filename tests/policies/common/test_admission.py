from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.model import Cluster, GpuType, Job, Shares, Snapshot, Why, cluster_of
from stretto.policies.common.admission import admit_anew, admit_waiting, most_gpus_of_one_job
from stretto.testing.builders import a_cluster, a_job, a_snapshot, grant

MIXED = cluster_of("mixed", (GpuType("small"), 2, 4), (GpuType("large"), 1, 8))  # 8 + 8 GPUs


def rows(snapshot: Snapshot, names: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array([snapshot.jobs.ids.index(name) for name in names.split()], dtype=np.int64)


def given_to(snapshot: Snapshot, shares: Shares) -> dict[str, tuple[int, int]]:
    """(GPUs, type) of those that are served."""
    served = np.flatnonzero(shares.gpus).tolist()
    return {snapshot.jobs.ids[row]: (int(shares.gpus[row]), int(shares.kind[row])) for row in served}


@pytest.mark.parametrize(
    ("asks", "skip", "starts"),
    [
        pytest.param({"a": 4, "b": 2, "c": 2}, False, "a b c", id="everybody starts where all fit"),
        pytest.param(
            {"a": 4, "b": 8, "c": 2}, False, "a", id="strictly nobody passes the one that does not fit"
        ),
        pytest.param({"a": 4, "b": 8, "c": 2}, True, "a c", id="with skip a smaller one may pass"),
        pytest.param({"a": 9, "b": 8}, False, "b", id="a job that could never fit holds nobody up"),
        pytest.param(
            {"a": 5, "b": 4, "c": 2, "d": 3, "e": 1}, True, "a c e", id="skipping goes on to the end"
        ),
        pytest.param({"a": 8, "b": 1}, True, "a", id="nothing is left for the last"),
    ],
)
def test_waiting_jobs_start_in_order(asks: dict[str, int], skip: bool, starts: str) -> None:
    jobs = [a_job(name, gpus, at_s=at) for at, (name, gpus) in enumerate(asks.items())]
    snapshot = a_snapshot(*jobs, cluster=a_cluster(8))
    shares = admit_waiting(snapshot, np.arange(len(jobs)), skip=skip)
    assert " ".join(given_to(snapshot, shares)) == starts


def test_strictness_is_asked_of_the_placer_too() -> None:
    snapshot = a_snapshot(a_job("a"), a_job("b"), cluster=a_cluster(8), allocations={"b": grant(0, n0=1)})
    strict = admit_waiting(snapshot, rows(snapshot, "a"), skip=False)
    assert strict.in_order
    assert strict.order is not None
    assert strict.order.tolist() == rows(snapshot, "b a").tolist()  # who runs is in nobody's way
    assert not admit_waiting(snapshot, rows(snapshot, "a"), skip=True).in_order


@pytest.mark.parametrize(
    ("asks", "kinds"),
    [
        pytest.param({"a": 2}, {"a": 0}, id="equally free types are taken in the cluster's order"),
        pytest.param({"a": 2, "b": 4}, {"a": 0, "b": 1}, id="the type with most free GPUs is taken"),
        pytest.param({"a": 6, "b": 6}, {"a": 0, "b": 1}, id="a job never spans two types"),
        pytest.param({"a": 6, "b": 6, "c": 4}, {"a": 0, "b": 1}, id="two GPUs on each type are not four"),
    ],
)
def test_on_a_mixed_cluster_a_job_goes_to_one_type(asks: dict[str, int], kinds: dict[str, int]) -> None:
    jobs = [a_job(name, gpus, at_s=at) for at, (name, gpus) in enumerate(asks.items())]
    snapshot = a_snapshot(*jobs, cluster=MIXED)
    shares = admit_waiting(snapshot, np.arange(len(jobs)), skip=False)
    assert given_to(snapshot, shares) == {name: (asks[name], kind) for name, kind in kinds.items()}


def test_a_job_goes_only_to_types_that_it_accepts() -> None:
    jobs = [
        a_job("a", 2, gpu_types=("large",)),
        a_job("b", 8, at_s=1, gpu_types=("large",)),
        a_job("c", 8, at_s=2),
    ]
    snapshot = a_snapshot(*jobs, cluster=MIXED)
    assert given_to(snapshot, admit_waiting(snapshot, np.arange(3), skip=False)) == {"a": (2, 1)}
    assert given_to(snapshot, admit_waiting(snapshot, np.arange(3), skip=True)) == {"a": (2, 1), "c": (8, 0)}


def test_a_limit_on_nodes_of_one_job_is_a_limit_on_its_gpus() -> None:
    limited = cluster_of("limited", (GpuType("t", max_nodes_per_job=2), 4, 4))
    assert most_gpus_of_one_job(limited).tolist() == [8]
    snapshot = a_snapshot(a_job("a", 12), cluster=limited)
    assert admit_waiting(snapshot, np.arange(1), skip=False).why.of(0) is Why.TOO_LARGE


@pytest.mark.parametrize(
    ("order", "served"),
    [
        pytest.param(
            "new old", {"new": (4, 1), "old": (4, 0)}, id="idle GPUs are taken before those of others"
        ),
        pytest.param(
            "wide new old", {"wide": (8, 1), "new": (4, 0), "old": (4, 0)}, id="and what is left after them"
        ),
        pytest.param(
            "wide big old", {"wide": (8, 1), "big": (8, 0)}, id="who comes later is stopped if it must be"
        ),
        pytest.param("big old", {"big": (8, 1), "old": (4, 0)}, id="and spared if it need not be"),
    ],
)
def test_anew_running_jobs_keep_their_type(order: str, served: Mapping[str, tuple[int, int]]) -> None:
    asks = {"old": 4, "new": 4, "wide": 8, "big": 8}
    jobs = [a_job(name, asks[name]) for name in order.split()]
    snapshot = a_snapshot(*jobs, cluster=MIXED, allocations={"old": grant(0, n0=4)})
    assert given_to(snapshot, admit_anew(snapshot, rows(snapshot, order))) == served


def test_a_running_job_whose_type_was_taken_moves_rather_than_waits() -> None:
    jobs = [a_job("bound", 8, gpu_types=("small",)), a_job("old", 4)]
    snapshot = a_snapshot(*jobs, cluster=MIXED, allocations={"old": grant(0, n0=4)})
    shares = admit_anew(snapshot, rows(snapshot, "bound old"))
    assert given_to(snapshot, shares) == {"bound": (8, 0), "old": (4, 1)}


@pytest.mark.parametrize("preemptible", [True, False])
def test_anew_only_those_that_may_be_stopped_are_stopped(preemptible: bool) -> None:
    jobs = [a_job("first", 8), a_job("runs", 6, preemptible=preemptible)]
    snapshot = a_snapshot(*jobs, cluster=a_cluster(8), allocations={"runs": grant(0, n0=6)})
    served = given_to(snapshot, admit_anew(snapshot, rows(snapshot, "first runs")))
    assert served == ({"first": (8, 0)} if preemptible else {"runs": (6, 0)})


def test_an_order_that_changes_nothing_says_so() -> None:
    runs, waits, small = a_job("runs", 6), a_job("waits", 4), a_job("small", 2)
    full = a_snapshot(runs, waits, cluster=a_cluster(8), allocations={"runs": grant(0, n0=6)})
    assert admit_anew(full, np.arange(2)).keep_all(full.jobs)
    assert admit_waiting(full, np.array([1]), skip=False).keep_all(full.jobs)
    roomy = a_snapshot(runs, small, cluster=a_cluster(8), allocations={"runs": grant(0, n0=6)})
    assert not admit_anew(roomy, np.arange(2)).keep_all(roomy.jobs)


def test_a_job_that_runs_on_other_than_it_asks_keeps_it_only_where_nobody_is_stopped() -> None:
    snapshot = a_snapshot(
        a_job("grown", 2, max_gpus=8), cluster=a_cluster(8), allocations={"grown": grant(0, n0=4)}
    )
    nobody_waits = np.zeros(0, dtype=np.int64)
    assert admit_waiting(snapshot, nobody_waits, skip=False).gpus.tolist() == [4]
    assert admit_anew(snapshot, np.arange(1)).gpus.tolist() == [2]


@pytest.mark.parametrize(
    ("job", "why", "evidence"),
    [
        pytest.param(
            a_job("x", 2, at_s=9),
            Why.BEHIND_IN_ORDER,
            "asks 2 GPUs of one type, 8 small, 3 large free",
            id="behind",
        ),
        pytest.param(
            a_job("x", 8, at_s=9, gpu_types=("large",)),
            Why.NO_FREE_GPUS,
            "asks 8 GPUs of one type, 8 small, 3 large free",
            id="none free of its type",
        ),
        pytest.param(
            a_job("x", 9, at_s=9),
            Why.TOO_LARGE,
            "asks 9 GPUs of one type, 8 small, 8 large there are for one job",
            id="never",
        ),
    ],
)
def test_a_waiting_job_is_told_why(job: Job, why: Why, evidence: str) -> None:
    head = a_job("head", 6, gpu_types=("large",), at_s=1)
    snapshot = a_snapshot(a_job("runs", 5), head, job, cluster=MIXED, allocations={"runs": grant(1, n2=5)})
    shares = admit_waiting(snapshot, rows(snapshot, "head x"), skip=False)
    assert shares.why.of(1) is Why.NO_FREE_GPUS
    assert shares.why.of(2) is why
    assert shares.why.evidence[2] == evidence
    assert sorted(shares.why.evidence) == [1, 2]
    assert 0 not in shares.why.evidence


def test_on_one_type_the_evidence_names_no_type() -> None:
    snapshot = a_snapshot(a_job("a", 6), a_job("b", 4, at_s=1), a_job("c", 9, at_s=2), cluster=a_cluster(8))
    evidence = admit_waiting(snapshot, np.arange(3), skip=True).why.evidence
    assert dict(evidence) == {1: "asks 4 GPUs, 2 free", 2: "asks 9 GPUs, 8 there are for one job"}


def one_by_one(asks: list[int], free: int, skip: bool) -> list[int]:
    """The walk as anyone would write it."""
    served = []
    for row, gpus in enumerate(asks):
        if gpus <= free:
            served.append(row)
            free -= gpus
        elif not skip and gpus <= TOTAL:
            break
    return served


TOTAL = 24


@given(
    asks=st.lists(st.integers(1, 30), max_size=30),
    busy=st.integers(0, TOTAL),
    skip=st.booleans(),
)
def test_the_walk_by_arrays_is_the_walk_one_by_one(asks: list[int], busy: int, skip: bool) -> None:
    jobs = [a_job(f"j{row:02d}", gpus, at_s=row) for row, gpus in enumerate(asks)]
    running = a_job("r", max(busy, 1), at_s=99)
    held = {"r": grant(0, n0=busy)} if busy else {}
    single: Cluster = a_cluster(TOTAL)
    snapshot = a_snapshot(*jobs, running, cluster=single, allocations=held)
    shares = admit_waiting(snapshot, np.arange(len(jobs)), skip=skip)
    assert np.flatnonzero(shares.gpus[: len(jobs)]).tolist() == one_by_one(asks, TOTAL - busy, skip)


def test_a_job_gets_as_many_more_gpus_where_they_stand_in_for_others() -> None:
    cluster = cluster_of("both", (GpuType("fast"), 1, 2), (GpuType("slow", stand_ins=3), 1, 8))
    snapshot = a_snapshot(a_job("a", 2), a_job("b", 2), a_job("c", 1), cluster=cluster)
    shares = admit_waiting(snapshot, np.arange(3), skip=True)
    assert (shares.gpus.tolist(), shares.kind.tolist()) == ([2, 6, 0], [0, 1, -1])
