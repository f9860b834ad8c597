"""Stretto's program on tiny clusters: who gets what, and when that changes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from stretto.model import (
    NOTHING_OBSERVED,
    Adaptivity,
    Cluster,
    Evidence,
    GpuType,
    Job,
    Kind,
    Shares,
    TrainingLimits,
    Why,
    cluster_of,
    powers_and_whole_nodes,
)
from stretto.policies.stretto.policy import Stretto
from stretto.testing.builders import a_cluster, a_job, a_snapshot, grant, some_progress, speeds_of

NODE = a_cluster(4)
PERFECT = [1.0, 2.0, 4.0]  # on 1, 2 and 4 GPUs of one node
HARDLY = [1.0, 1.1, 1.2]
A, B = GpuType("A"), GpuType("B")
TWO_TYPES = cluster_of("two types", (A, 1, 1), (B, 1, 1))


def limits(types: int) -> TrainingLimits:
    return TrainingLimits(
        init_batch=32,
        max_batch=4096,
        min_local=np.full(types, 8),
        max_local=np.full(types, 256),
        single_per_s=np.full(types, 100.0),
        replica_gpus=np.ones(types, dtype=np.int64),
        restart_s=30.0,
        reach_gpus=512,
    )


def allocate(
    jobs: Sequence[Job],
    goodput: Any,
    cluster: Cluster = NODE,
    held: Any = None,
    left: Sequence[float] = (),
    policy: Stretto | None = None,
    now_s: float = 10_000.0,
    progress: Mapping[str, Any] | None = None,
    **speeds: Any,
) -> Shares:
    types = len(cluster.types)
    shown = [Evidence(limits(types), (NOTHING_OBSERVED,) * types, np.nan, np.nan) for _ in jobs]
    snapshot = a_snapshot(
        *jobs,
        cluster=cluster,
        allocations=held,
        now_s=now_s,
        known_progress=some_progress(len(jobs), **(progress or {})),
        known_evidence=shown,
        known_work=np.array(left or [1e5] * len(jobs)),
    )
    believed = speeds_of(powers_and_whole_nodes(cluster), goodput, types=types, **speeds)
    return (policy or Stretto()).allocate(snapshot, believed)


def elastic(name: str, **rest: Any) -> Job:
    return a_job(name, at_s=9_999.0, min_gpus=1, max_gpus=64, **rest)


def test_a_job_that_is_alone_is_as_fast_as_it_can_be() -> None:
    assert allocate([elastic("1")], [[1.0, 2.0, 1.5]]).gpus.tolist() == [2]


def test_jobs_that_are_alike_get_alike() -> None:
    assert allocate([elastic("1"), elastic("2")], [PERFECT, PERFECT]).gpus.tolist() == [2, 2]


def test_gpus_go_where_they_help() -> None:
    cluster = a_cluster(2, 1)
    goodput = [[1.0, 2.0, 2.0], [1.0, 1.05, 1.05]]
    offered = powers_and_whole_nodes(cluster)
    assert offered.gpus.tolist()[:2] == [1, 2]
    shares = allocate([elastic("1"), elastic("2")], [row[: len(offered)] for row in goodput], cluster)
    assert shares.gpus.tolist() == [2, 1]


def test_how_much_is_left_makes_no_difference_to_equal_relative_gains() -> None:
    """The sum of log T: the one that needs a thousand times as long gets no more, and no less."""
    shares = allocate([elastic("1"), elastic("2")], [PERFECT, PERFECT], left=[1e3, 1e6])
    assert shares.gpus.tolist() == [2, 2]


def test_with_all_of_tail_the_job_that_needs_longest_gets_everything() -> None:
    """The sum of T: what others lose is little beside what it gains."""
    goodput = [[1.0, 1.5, 2.2]] * 3
    jobs = [elastic("1"), elastic("2"), elastic("3")]
    assert sorted(allocate(jobs, goodput, left=[1e4, 1e4, 1e6]).gpus.tolist()) == [1, 1, 2]
    shares = allocate(jobs, goodput, left=[1e4, 1e4, 1e6], policy=Stretto(tail=1.0))
    assert shares.gpus.tolist() == [0, 0, 4]


# ── what a change costs ─────────────────────────────────────────────────────────────────────────────────────

RUNS_ON_A = {"1": grant(0, n0=1)}
FASTER_ON_B = [[1.0, 1.3]]


@pytest.mark.parametrize(("lasts_s", "kind"), [(100.0, 0), (1_000.0, 1)])
def test_a_job_moves_only_if_it_stays_long_enough_for_that_to_pay(lasts_s: float, kind: int) -> None:
    """30 % faster elsewhere, for a stop of 62 s: worth it beyond 207 s."""
    shares = allocate(
        [elastic("1")],
        FASTER_ON_B,
        TWO_TYPES,
        held=RUNS_ON_A,
        policy=Stretto(lifetime_s=lasts_s),
        progress={"suspension_s": [62.0]},
    )
    assert shares.kind.tolist() == [kind]


def test_a_job_that_ends_soon_does_not_move() -> None:
    shares = allocate(
        [elastic("1")],
        FASTER_ON_B,
        TWO_TYPES,
        held=RUNS_ON_A,
        left=[150.0],
        policy=Stretto(lifetime_s=1_000.0),
        progress={"suspension_s": [62.0]},
    )
    assert shares.kind.tolist() == [0]


@pytest.mark.parametrize(("resize_s", "gpus"), [(1.0, 4), (np.nan, 1)])
def test_what_is_cheap_is_done_readily(resize_s: float, gpus: int) -> None:
    """Free GPUs help a little, for a minute: a resize in place pays, a stop and a start does not."""
    shares = allocate(
        [elastic("1")],
        [HARDLY],
        held={"1": grant(0, n0=1)},
        policy=Stretto(lifetime_s=60.0),
        progress={"suspension_s": [62.0], "resize_s": [resize_s]},
    )
    assert shares.gpus.tolist() == [gpus]


def test_a_start_that_was_not_measured_is_assumed() -> None:
    moves = Stretto(lifetime_s=200.0, restart_s=10.0)
    stays = Stretto(lifetime_s=200.0, restart_s=100.0)
    kinds = [
        allocate([elastic("1")], FASTER_ON_B, TWO_TYPES, held=RUNS_ON_A, policy=policy).kind.tolist()
        for policy in (moves, stays)
    ]
    assert kinds == [[1], [0]]


# ── who waits ───────────────────────────────────────────────────────────────────────────────────────────────


def test_somebody_who_waits_in_front_of_a_screen_is_served_before_all_else() -> None:
    trains = elastic("1", preemptible=True)
    session = a_job("2", gpus=4, at_s=9_999.5, kind=Kind.INTERACTIVE, adaptivity=Adaptivity.RIGID)
    asked: dict[str, Any] = {"requested_per_s": np.array([[4.0], [4.0]])}
    shares = allocate([trains, session], [PERFECT, PERFECT], held={"1": grant(0, n0=4)}, **asked)
    assert shares.gpus.tolist() == [0, 4]


def test_a_job_that_needs_the_whole_cluster_gets_it_in_the_end() -> None:
    """Small jobs come all the time; in the end the large one is worth more than all of them."""
    large = a_job("0", gpus=4, at_s=0.0, min_gpus=4, max_gpus=4)
    small = [elastic(str(number)) for number in range(1, 5)]
    at_once = allocate([large, *small], [PERFECT] * 5, now_s=10_000.0, policy=Stretto(patience_s=1e9))
    assert at_once.gpus.tolist() == [0, 1, 1, 1, 1]
    assert at_once.why.code[0] == Why.WORTH_LESS
    later = allocate([large, *small], [PERFECT] * 5, now_s=10_000.0, policy=Stretto(patience_s=1_000.0))
    assert later.gpus.tolist() == [4, 0, 0, 0, 0]


def test_work_of_unknown_length_is_decided_by_speeds_alone() -> None:
    shares = allocate([elastic("1"), elastic("2")], [PERFECT, PERFECT], left=[np.nan, 1e5])
    assert shares.gpus.tolist() == [2, 2]


def test_work_of_unknown_length_is_not_believed_to_end_soon() -> None:
    """Beside a short remainder, a second for a resize would count as much as all of it."""
    shares = allocate(
        [elastic("1")],
        [PERFECT],
        held={"1": grant(0, n0=1)},
        left=[np.nan],
        progress={"resize_s": [1.0]},
    )
    assert shares.gpus.tolist() == [4]


def test_no_job_gets_more_than_twice_what_its_model_was_seen_on() -> None:
    shares = allocate([elastic("1")], [PERFECT], observed_gpus=np.array([[1]]))
    assert shares.gpus.tolist() == [2]
