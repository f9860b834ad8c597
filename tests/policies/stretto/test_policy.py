"""Stretto's program on tiny clusters: who gets what, and when that changes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stretto.model import (
    NO_CONSTRAINTS,
    Adaptivity,
    Cluster,
    Constraints,
    Durations,
    FairShare,
    GpuType,
    Job,
    Kind,
    LenderState,
    Node,
    NodeId,
    Reward,
    Shares,
    Why,
    cluster_of,
    powers_and_whole_nodes,
    traits_of,
)
from stretto.policies import load_policy
from stretto.policies.stretto.policy import Stretto
from stretto.testing.builders import (
    a_cluster,
    a_job,
    a_snapshot,
    grant,
    nothing_shown,
    some_progress,
    speeds_of,
)

NODE = a_cluster(4)
PERFECT = [1.0, 2.0, 4.0]  # on 1, 2 and 4 GPUs of one node
HARDLY = [1.0, 1.1, 1.2]
A, B = GpuType("A"), GpuType("B")
TWO_TYPES = cluster_of("two types", (A, 1, 1), (B, 1, 1))


def allocate(
    jobs: Sequence[Job],
    goodput: Any,
    cluster: Cluster = NODE,
    held: Any = None,
    left: Sequence[float] = (),
    policy: Stretto | None = None,
    now_s: float = 10_000.0,
    progress: Mapping[str, Any] | None = None,
    memory: Any = None,
    lenders: tuple[LenderState, ...] = (),
    constraints: Constraints = NO_CONSTRAINTS,
    **speeds: Any,
) -> Shares:
    types = len(cluster.types)
    shown = nothing_shown(len(jobs), types)
    snapshot = a_snapshot(
        *jobs,
        cluster=cluster,
        allocations=held,
        now_s=now_s,
        known_progress=some_progress(len(jobs), **(progress or {})),
        known_evidence=shown,
        known_work=np.array(left or [1e5] * len(jobs)),
        known_estimates=Durations(np.full(len(jobs), np.nan), np.full(len(jobs), np.nan)),
        memory=memory,
    )
    snapshot = replace(snapshot, lenders=lenders, constraints=constraints)
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


@pytest.mark.parametrize(("exponent", "gpus"), [(0.0, [2, 2]), (-0.1, [4, 0]), (-1.0, [4, 0])])
def test_a_short_job_comes_before_a_long_one_unless_the_product_of_times_is_to_be_least(
    exponent: float, gpus: list[int]
) -> None:
    """With the sum of log T the one that needs a thousand times as long gets no more, and no less."""
    policy = Stretto(exponent=exponent)
    shares = allocate([elastic("1"), elastic("2")], [PERFECT, PERFECT], left=[1e3, 1e6], policy=policy)
    assert shares.gpus.tolist() == gpus


@pytest.mark.parametrize(("asked", "gpus"), [(1, [2, 2]), (4, [2, 2]), (8, [4, 0])])
def test_a_short_job_comes_first_once_jobs_ask_for_more_than_twice_what_there_is(
    asked: int, gpus: list[int]
) -> None:
    jobs = [elastic("1", gpus=asked), elastic("2", gpus=asked)]
    policy = Stretto(exponent=0.0, crowded_exponent=-1.0)
    assert allocate(jobs, [PERFECT, PERFECT], left=[1e3, 1e6], policy=policy).gpus.tolist() == gpus
    always = replace(policy, crowded_exponent=None)
    assert allocate(jobs, [PERFECT, PERFECT], left=[1e3, 1e6], policy=always).gpus.tolist() == [2, 2]


def test_a_log_from_before_the_exponent_is_decided_by_the_product_of_times() -> None:
    policy = load_policy("stretto", **traits_of(Stretto).former)
    assert isinstance(policy, Stretto)
    assert (policy.exponent, policy.crowded_exponent, policy.wait) == (0, None, 1)


def test_lengths_that_are_unknown_are_not_read_off_the_units_of_speeds() -> None:
    """A step of one job may be as much as a thousand of another's."""
    goodput = [PERFECT, [1000 * each for each in PERFECT]]
    assert allocate([elastic("1"), elastic("2")], goodput, left=[np.nan, np.nan]).gpus.tolist() == [2, 2]


# ── who is served first ─────────────────────────────────────────────────────────────────────────────────────

RIGID: dict[str, Any] = {"adaptivity": Adaptivity.RIGID}
ONE_GPU = a_cluster(1)


def asked_for(jobs: int) -> dict[str, Any]:
    return {"requested_per_s": np.ones((jobs, 1))}


def test_where_not_all_can_be_served_the_one_that_ends_soonest_is() -> None:
    """A wait of a usual length is much beside a short job, and little beside a long one."""
    jobs = [a_job(name, at_s=9_999.0, **RIGID) for name in "123"]
    shares = allocate(jobs, [[1.0]] * 3, ONE_GPU, left=[3e4, 1e3, 1e4], **asked_for(3))
    assert shares.gpus.tolist() == [0, 1, 0]


def test_who_is_nearly_done_is_not_stopped_for_a_shorter_one() -> None:
    jobs = [a_job(name, at_s=9_999.0, **RIGID) for name in "12"]
    held = {"1": grant(0, n0=1)}
    for left_s, served in ((100.0, "1"), (5_000.0, "2")):
        shares = allocate(
            jobs,
            [[1.0]] * 2,
            ONE_GPU,
            held,
            left=[left_s, 90.0],
            progress={"suspension_s": [60.0, 60.0]},
            **asked_for(2),
        )
        assert [name for name, gpus in zip("12", shares.gpus, strict=True) if gpus] == [served]


def test_who_would_lose_all_that_it_has_done_is_not_stopped() -> None:
    held = {"1": grant(0, n0=1)}
    for checkpoints, served in ((True, [0, 1]), (False, [1, 0])):
        jobs = [
            a_job("1", at_s=0.0, checkpoints=checkpoints, **RIGID),
            a_job("2", at_s=9_999.0, checkpoints=checkpoints, **RIGID),
        ]
        shares = allocate(
            jobs,
            [[1.0]] * 2,
            ONE_GPU,
            held,
            left=[30_000.0, 200.0],
            progress={"executed_s": [900.0, 0.0]},
            **asked_for(2),
        )
        assert shares.gpus.tolist() == served


# ── deadlines ───────────────────────────────────────────────────────────────────────────────────────────────

NOW_S = 10_000.0


def due(name: str, *rewards: tuple[float, float], **rest: Any) -> Job:
    """A rigid job of one GPU; rewards: (seconds from now on, value)."""
    steps = tuple(Reward(NOW_S + left_s, value) for left_s, value in rewards)
    return a_job(name, at_s=9_999.0, rewards=steps, **{**RIGID, **rest})


def promised(shares: Shares) -> dict[str, float]:
    """By job, in how many seconds it was promised to have ended."""
    kept = shares.memory.promises
    return {job: due_s - NOW_S for job, due_s in zip(kept.ids, kept.due_s, strict=True)}


def test_a_deadline_that_cannot_wait_goes_before_a_shorter_job_and_one_that_can_does_not() -> None:
    for left_s, served in ((1_200.0, [1, 0]), (100_000.0, [0, 1])):
        jobs = [due("1", (left_s, 100.0)), a_job("2", at_s=9_999.0, **RIGID)]
        shares = allocate(jobs, [[1.0]] * 2, ONE_GPU, left=[1_000.0, 800.0], **asked_for(2))
        assert shares.gpus.tolist() == served


def test_a_job_whose_deadline_can_wait_lets_a_longer_one_go_first() -> None:
    jobs = [due("1", (100_000.0, 100.0)), a_job("2", at_s=9_999.0, **RIGID)]
    for early, served in ((1.0, [1, 0]), (0.5, [0, 1])):
        policy = Stretto(early=early)
        shares = allocate(jobs, [[1.0]] * 2, ONE_GPU, policy=policy, left=[1_000.0, 1_200.0], **asked_for(2))
        assert shares.gpus.tolist() == served


def test_a_strict_deadline_outweighs_a_soft_one() -> None:
    jobs = [due("1", (1_200.0, 20.0)), due("2", (1_200.0, 100.0))]
    shares = allocate(jobs, [[1.0]] * 2, ONE_GPU, left=[1_000.0] * 2, **asked_for(2))
    assert shares.gpus.tolist() == [0, 1]


def test_a_deadline_that_is_lost_counts_no_more() -> None:
    jobs = [due("1", (900.0, 100.0)), a_job("2", at_s=9_999.0, **RIGID)]
    shares = allocate(jobs, [[1.0]] * 2, ONE_GPU, left=[1_000.0, 800.0], **asked_for(2))
    assert shares.gpus.tolist() == [0, 1]
    assert promised(shares) == {}


def test_only_so_much_is_promised_as_the_share_of_the_cluster_can_do() -> None:
    """Two of four GPUs do 2 x 1,200 s of work until then: two jobs of 1,000 s, with doubts of a tenth."""
    jobs = [due(name, (1_200.0, 100.0)) for name in "1234"]
    shares = allocate(
        jobs,
        [[1.0, 1.0, 1.0]] * 4,
        left=[1_000.0] * 4,
        policy=Stretto(promised_share=0.5),
        **asked_for(4),
    )
    assert promised(shares) == {"1": 1_200.0, "2": 1_200.0}
    assert shares.gpus.tolist() == [1, 1, 1, 1]


def test_what_was_promised_is_kept_before_what_is_worth_more() -> None:
    policy = Stretto(promised_share=0.5)
    one: dict[str, Any] = {"left": [1_500.0], "policy": policy}
    before = allocate([due("1", (2_400.0, 10.0))], [[1.0]], ONE_GPU, **one, **asked_for(1)).memory
    jobs = [due("1", (2_400.0, 10.0)), due("2", (2_400.0, 100.0))]
    both: dict[str, Any] = {"left": [1_500.0] * 2, "policy": policy, **asked_for(2)}
    assert set(promised(allocate(jobs, [[1.0]] * 2, ONE_GPU, **both))) == {"2"}
    assert set(promised(allocate(jobs, [[1.0]] * 2, ONE_GPU, memory=before, **both))) == {"1"}


def test_a_soft_deadline_is_promised_for_the_step_that_has_room() -> None:
    jobs = [due("1", (1_200.0, 100.0)), due("2", (1_200.0, 90.0), (2_400.0, 50.0))]
    shares = allocate(
        jobs,
        [[1.0]] * 2,
        ONE_GPU,
        left=[1_000.0] * 2,
        policy=Stretto(promised_share=1.0),
        **asked_for(2),
    )
    assert promised(shares) == {"1": 1_200.0, "2": 2_400.0}


# ── who has had more than its share, and what may be taken back ─────────────────────────────────────────────


@pytest.mark.parametrize(("fairness", "served"), [(1.0, [0, 1]), (0.0, [1, 0])])
def test_a_user_who_has_had_little_counts_more(fairness: float, served: list[int]) -> None:
    fair = FairShare(usage_gpu_s={("default", "ann"): 9e5, ("default", "bob"): 1e5})
    jobs = [a_job(name, at_s=9_999.0, user=user, **RIGID) for name, user in (("1", "ann"), ("2", "bob"))]
    shares = allocate(
        jobs,
        [[1.0]] * 2,
        ONE_GPU,
        left=[1_000.0, 1_200.0],
        policy=Stretto(fairness=fairness),
        constraints=Constraints(fair_share=fair),
        **asked_for(2),
    )
    assert shares.gpus.tolist() == served


@pytest.mark.parametrize(
    ("demand", "saves", "kind"),
    [([0.0] * 9, False, 1), ([0.0, 1.0] * 5, False, 0), ([0.0, 1.0] * 5, True, 1)],
)
def test_nodes_that_are_often_taken_back_are_worth_less_to_who_loses_by_it(
    demand: list[float], saves: bool, kind: int
) -> None:
    lent = Node(NodeId("B-0"), "B", 1, lender="inference")
    cluster = Cluster("half lent", (A, B), (*TWO_TYPES.nodes[:1], lent))
    lender = LenderState("inference", np.array([1]), 0.0, 300.0, np.array(demand), np.nan)
    job = elastic("1", checkpoints=saves)
    shares = allocate([job], FASTER_ON_B, cluster, left=[1e4], lenders=(lender,))
    assert shares.kind.tolist() == [kind]


def test_a_policy_that_believes_in_no_reclaims_takes_them_for_its_own() -> None:
    lent = Node(NodeId("B-0"), "B", 1, lender="inference")
    cluster = Cluster("half lent", (A, B), (*TWO_TYPES.nodes[:1], lent))
    lender = LenderState("inference", np.array([1]), 0.0, 300.0, np.array([0.0, 1.0] * 5), np.nan)
    kinds = [
        allocate(
            [elastic("1", checkpoints=False)],
            FASTER_ON_B,
            cluster,
            left=[1e4],
            lenders=(lender,),
            policy=Stretto(reclaims=reclaims),
        ).kind.tolist()
        for reclaims in (0.0, 1.0)
    ]
    assert kinds == [[1], [0]]


def test_gpus_of_which_several_stand_in_for_one_are_counted_so() -> None:
    third = GpuType("T", stand_ins=3)
    cluster = cluster_of("stand-ins", (third, 1, 8))
    shares = allocate([a_job("1", gpus=2, **RIGID)], [[1.0] * 4], cluster, **asked_for(1))
    assert shares.gpus.tolist() == [6]


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


@pytest.mark.parametrize(("sizes_end", "gpus"), [(False, 2), (True, 1)])
def test_a_restart_must_pay_more_for_another_size_than_for_another_type(sizes_end: bool, gpus: int) -> None:
    """A third faster, for a stop of 62 s: a type that lasts 200 s pays beyond 1.31, a size beyond e^0.31."""
    policy = Stretto(lifetime_s=200.0, sizes_end=sizes_end)
    progress = {"suspension_s": [62.0]}
    moved = allocate(
        [elastic("1")], [[1.0, 1.33]], TWO_TYPES, held=RUNS_ON_A, policy=policy, progress=progress
    )
    resized = allocate(
        [elastic("1")], [[1.0, 1.33, 0.5]], held={"1": grant(0, n0=1)}, policy=policy, progress=progress
    )
    assert (moved.kind.tolist(), resized.gpus.tolist()) == ([1], [gpus])


def test_a_size_that_would_hardly_last_as_long_as_the_change_to_it_is_a_number_still() -> None:
    """A second is left of a job that takes an hour to start: worth is finite, and the job goes on."""
    shares = allocate(
        [elastic("1")],
        [HARDLY],
        held={"1": grant(0, n0=1)},
        left=[1.0],
        progress={"suspension_s": [3600.0]},
    )
    assert shares.gpus.tolist() == [1]


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


@pytest.mark.parametrize("growth", [1, 2, 4])
def test_no_job_gets_more_than_so_many_times_what_its_model_was_seen_on(growth: int) -> None:
    cluster = a_cluster(2, 4)
    shares = allocate(
        [elastic("1")],
        [[1.0, 2.0, 4.0, 8.0]],
        cluster,
        observed_gpus=np.array([[1]]),
        policy=Stretto(growth=growth),
    )
    assert shares.gpus.tolist() == [growth]
