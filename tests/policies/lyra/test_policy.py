from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from stretto.jobfile import read_submission, spec_to_job
from stretto.model import (
    Allocation,
    Cluster,
    Durations,
    GpuType,
    Job,
    JobId,
    LenderState,
    Node,
    NodeId,
    Placement,
    Snapshot,
    Trigger,
    View,
    Why,
    floats,
    no_speeds,
)
from stretto.place.as_pinned import AsPinned
from stretto.policies import load_policy
from stretto.policies.lyra.policy import Fungible, Lyra, LyraTuned, SjfKey
from stretto.scheduler.check import check_shares
from stretto.scheduler.constraints.whole_workers import show_one_size
from stretto.sim.run import Setup, simulate
from stretto.sim.settings import SimSettings
from stretto.testing.builders import a_cluster, a_job, a_snapshot, grant, speeds_of
from stretto.traces import Workload
from stretto.traces.workload import Truth

V100, T4 = 0, 1


def own_and_lent(own: int, lent: int, stand_ins: int = 3) -> Cluster:
    """Nodes of 8 GPUs: v0 and on are ours, the others another's, so many GPUs of whom stand in for one."""
    types = (GpuType("v100"), GpuType("t4", stand_ins=stand_ins))
    nodes = [Node(NodeId(f"v{index}"), "v100", 8) for index in range(own)]
    nodes += [Node(NodeId(f"t{index}"), "t4", 8, lender="inference") for index in range(lent)]
    return Cluster("two", types, tuple(nodes))


def at_work(
    *jobs: Job,
    cluster: Cluster,
    duration_s: Mapping[str, float],
    held: Mapping[str, Allocation] | None = None,
    on_loan: Sequence[int] = (),
) -> Snapshot:
    """A snapshot in which durations are known and some lent nodes may be used."""
    ordered = sorted(jobs, key=lambda job: (job.submitted_s, job.id))
    seconds = floats([duration_s[job.id] for job in ordered])
    snapshot = a_snapshot(
        *jobs, cluster=cluster, allocations=held, known_estimates=Durations(seconds, seconds)
    )
    lent = np.array([bool(node.lender) for node in cluster.nodes])
    usable = ~lent
    usable[list(on_loan)] = True
    lender = LenderState("inference", np.flatnonzero(lent), 0.02, 300.0, floats([0.5]), np.nan)
    return replace(snapshot, usable=usable, lenders=(lender,) if lent.any() else ())


def decided(snapshot: Snapshot, policy: Lyra | None = None) -> Placement:
    """What is placed of Lyra's shares: all of them."""
    policy = policy or Lyra()
    columns = policy.configurations(snapshot.cluster)
    shares = policy.allocate(snapshot, no_speeds(len(snapshot.jobs), len(snapshot.cluster.types), columns))
    check_shares(snapshot, shares)
    placement = AsPinned().place(snapshot, shares)
    placed = [placement[job].gpus if job in placement else 0 for job in snapshot.jobs.ids]
    assert placed == shares.gpus.tolist()
    return placement


def gpus(placement: Placement) -> dict[str, int]:
    return {str(job): allocation.gpus for job, allocation in sorted(placement.items())}


def flexible_gpus(allocation: Allocation) -> int:
    return sum(mask.bit_count() for mask in allocation.flexible)


# ── section 5.1: two elastic jobs ───────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Elastic:
    """A job of table 2 or 4."""

    least: int
    most: int
    fastest_s: float  # with most workers


def completion_s(a: Elastic, b: Elastic, workers: tuple[int, int], capacity: int = 8) -> tuple[float, float]:
    """When both end: whoever is left gets all that it can use as soon as the first has ended."""
    work = (a.fastest_s * a.most, b.fastest_s * b.most)
    alone_s = [work[0] / workers[0], work[1] / workers[1]]
    first = int(alone_s[1] < alone_s[0])
    other = 1 - first
    done = alone_s[first] * workers[other]
    rest_s = (work[other] - done) / min((a, b)[other].most, capacity)
    ends = [0.0, 0.0]
    ends[first], ends[other] = alone_s[first], alone_s[first] + rest_s
    return ends[0], ends[1]


A, B = Elastic(2, 6, 50.0), Elastic(2, 6, 20.0)
A_OF_TABLE_4 = Elastic(2, 3, 100.0)


@pytest.mark.parametrize(
    ("workers", "ends", "mean"),
    [((6, 2), (50, 53.33), 51.67), ((2, 6), (63.33, 20), 41.67), ((4, 4), (60, 30), 45)],
)
def test_table_3_completion_times_by_numbers_of_workers(
    workers: tuple[int, int], ends: tuple[float, float], mean: float
) -> None:
    got = completion_s(A, B, workers)
    assert got == pytest.approx(ends, abs=5e-3)
    assert sum(got) / 2 == pytest.approx(mean, abs=5e-3)


@pytest.mark.parametrize(
    ("workers", "ends", "mean"), [((3, 5), (100, 24), 62), ((2, 6), (106.67, 20), 63.33)]
)
def test_table_4_completion_times_by_numbers_of_workers(
    workers: tuple[int, int], ends: tuple[float, float], mean: float
) -> None:
    got = completion_s(A_OF_TABLE_4, B, workers)
    assert got == pytest.approx(ends, abs=5e-3)
    assert sum(got) / 2 == pytest.approx(mean, abs=5e-3)


def test_the_sum_of_seconds_saved_is_not_the_mean_completion_time() -> None:
    """Table 2 once more: the knapsack's best allocation, (5, 3), is no solution that the paper lists."""
    saved_s = {
        workers: sum(
            job.fastest_s * job.most / job.least - job.fastest_s * job.most / count
            for job, count in zip((A, B), workers, strict=True)
        )
        for workers in ((6, 2), (5, 3), (4, 4), (3, 5), (2, 6))
    }
    assert max(saved_s, key=saved_s.__getitem__) == (5, 3)
    assert sum(completion_s(A, B, (5, 3))) / 2 == pytest.approx(48.33, abs=5e-3)
    assert sum(completion_s(A, B, (2, 6))) / 2 == pytest.approx(41.67, abs=5e-3)


def elastic_job(name: str, job: Elastic, each: int = 1) -> Job:
    """Asks for its most, so that its duration is its shortest running time."""
    return a_job(
        name, job.most * each, min_gpus=job.least * each, max_gpus=job.most * each, gpus_per_worker=each
    )


@pytest.mark.parametrize(
    ("a", "workers"),
    [
        pytest.param(A_OF_TABLE_4, {"a": 3, "b": 5}, id="the longer job first, which is better"),
        pytest.param(A, {"a": 5, "b": 3}, id="the longer job first, which is not"),
    ],
)
def test_lyra_shares_eight_workers(a: Elastic, workers: dict[str, int]) -> None:
    jobs = elastic_job("a", a), elastic_job("b", B)
    duration_s = {"a": a.fastest_s, "b": B.fastest_s}
    assert gpus(decided(at_work(*jobs, cluster=a_cluster(8), duration_s=duration_s))) == workers


@pytest.mark.parametrize(
    ("a", "ends", "mean"),
    [
        pytest.param(A_OF_TABLE_4, (100.0, 24.0), 62.0, id="the better row of table 4"),
        pytest.param(A, (56.67, 40.0), 48.33, id="between rows 1 and 2 of table 3"),
    ],
)
def test_two_simulated_jobs_end_as_their_shares_say(
    a: Elastic, ends: tuple[float, float], mean: float
) -> None:
    """From launch to end: whoever is left grows at the round in which the other has ended."""
    jobs = elastic_job("a", a), elastic_job("b", B)
    truths = [Truth(duration_s=a.fastest_s), Truth(duration_s=B.fastest_s)]
    setup = Setup(a_cluster(8), Lyra(round_s=0.01), SimSettings(restart_s=0.0))
    jct_s = simulate(Workload("two", list(jobs), truths), setup).jct_s
    assert jct_s == pytest.approx(ends, abs=0.02)
    assert jct_s.mean() == pytest.approx(mean, abs=0.02)


def test_base_demands_come_first_and_what_does_not_fit_is_skipped() -> None:
    jobs = elastic_job("a", A_OF_TABLE_4, each=2), elastic_job("b", B), a_job("i", 4, max_gpus=4, min_gpus=4)
    duration_s = {"a": 100.0, "b": 20.0, "i": 30.0}
    placement = decided(at_work(*jobs, cluster=a_cluster(8), duration_s=duration_s))
    assert gpus(placement) == {"b": 4, "i": 4}
    assert flexible_gpus(placement[JobId("b")]) == 2


# ── phases ──────────────────────────────────────────────────────────────────────────────────────────────


def rigid(name: str, gpus: int, at_s: float = 0.0, **rest: Any) -> Job:
    return a_job(name, gpus, at_s=at_s, min_gpus=gpus, max_gpus=gpus, **rest)


def test_the_shorter_job_starts_first_and_what_fits_passes_what_does_not() -> None:
    jobs = [rigid("long", 4), rigid("short", 6, at_s=1), rigid("small", 2, at_s=2)]
    snapshot = at_work(*jobs, cluster=a_cluster(8), duration_s={"long": 90.0, "short": 10.0, "small": 99.0})
    assert gpus(decided(snapshot)) == {"short": 6, "small": 2}


def test_a_waiting_job_takes_gpus_of_flexible_workers_and_of_nobody_else() -> None:
    runs = a_job("runs", 4, min_gpus=4, max_gpus=8)
    held = {"runs": Allocation(0, (0,), (0b11111111,), flexible=(0b11110000,))}
    fits = at_work(
        runs, rigid("new", 3, 1), cluster=a_cluster(8), held=held, duration_s={"runs": 9.0, "new": 1.0}
    )
    placement = decided(fits)
    assert gpus(placement) == {"new": 3, "runs": 5}
    assert placement[JobId("runs")].masks[0] & 0b1111 == 0b1111
    too_large = at_work(
        runs, rigid("new", 5, 1), cluster=a_cluster(8), held=held, duration_s={"runs": 9.0, "new": 1.0}
    )
    assert decided(too_large)[JobId("runs")] == held["runs"]


def test_nothing_that_runs_is_touched_where_nothing_is_to_be_gained() -> None:
    jobs = [rigid("a", 2), a_job("b", 4, min_gpus=4, max_gpus=6), rigid("waits", 8, 1)]
    held = {"a": grant(0, n0=2), "b": Allocation(0, (0,), (0b11111100,), flexible=(0b11000000,))}
    snapshot = at_work(*jobs, cluster=a_cluster(8), held=held, duration_s={"a": 1.0, "b": 2.0, "waits": 0.5})
    assert decided(snapshot) is snapshot.placement


@pytest.mark.parametrize(
    ("policy", "served"),
    [
        pytest.param(Lyra(), {"elastic": 8}, id="fastest: 10 s with 8 GPUs"),
        pytest.param(Lyra(sjf_key=SjfKey.BASE), {"rigid": 6}, id="base: 40 s with 2"),
    ],
)
def test_the_running_time_of_an_elastic_job_is_its_shortest(policy: Lyra, served: dict[str, int]) -> None:
    jobs = [a_job("elastic", 4, min_gpus=3, max_gpus=8), rigid("rigid", 6)]
    snapshot = at_work(*jobs, cluster=a_cluster(8), duration_s={"elastic": 20.0, "rigid": 12.0})
    assert gpus(decided(snapshot, policy)) == served


def test_a_job_with_checkpoints_that_was_stopped_comes_by_what_it_has_left() -> None:
    known = Durations(floats([30.0, 20.0]), floats([10.0, 20.0]))  # "back" has run 20 s of 30
    jobs = [rigid("back", 6), rigid("new", 6, at_s=1)]
    assert gpus(decided(a_snapshot(*jobs, cluster=a_cluster(8), known_estimates=known))) == {"back": 6}


def test_without_scaling_every_job_gets_what_it_asked_for() -> None:
    jobs = [a_job("elastic", 4, min_gpus=2, max_gpus=8), rigid("rigid", 2)]
    snapshot = at_work(*jobs, cluster=a_cluster(8), duration_s={"elastic": 20.0, "rigid": 12.0})
    assert gpus(decided(snapshot, Lyra(scaling=False))) == {"elastic": 4, "rigid": 2}
    assert gpus(decided(snapshot)) == {"elastic": 6, "rigid": 2}


def test_a_worker_stays_on_one_node_and_a_job_whose_workers_fit_nowhere_is_passed() -> None:
    jobs = [
        rigid("runs-a", 6),
        rigid("runs-b", 6),
        rigid("wide", 4, 1, gpus_per_worker=4),
        rigid("new", 4, 1),
    ]
    held = {"runs-a": grant(0, n0=6), "runs-b": grant(0, n1=6)}
    duration_s = {"runs-a": 9.0, "runs-b": 9.0, "wide": 1.0, "new": 2.0}
    snapshot = at_work(*jobs, cluster=a_cluster(8, 8), held=held, duration_s=duration_s)
    assert decided(snapshot)[JobId("new")].shape == (2, 2)
    shares = Lyra().allocate(snapshot, no_speeds(4, 1, Lyra().configurations(snapshot.cluster)))
    reason = dict(zip(snapshot.jobs.ids, shares.why.code, strict=True))[JobId("wide")]
    assert reason == Why.NO_FREE_GPUS  # the others have them


def test_workers_go_to_the_fullest_node_that_fits_one() -> None:
    jobs = [rigid("a", 6), rigid("b", 3), rigid("new", 4, 1, gpus_per_worker=2)]
    held = {"a": grant(0, n1=6), "b": grant(0, n2=3)}
    snapshot = at_work(
        *jobs, cluster=a_cluster(8, 8, 8), held=held, duration_s={"a": 1.0, "b": 1.0, "new": 1.0}
    )
    new = decided(snapshot)[JobId("new")]
    assert (new.nodes, new.shape) == ((1, 2), (2, 2))


# ── own and lent servers ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("job", "policy", "kind", "count"),
    [
        pytest.param(rigid("j", 2), Lyra(), V100, 2, id="inelastic jobs prefer own servers"),
        pytest.param(
            rigid("j", 2), Lyra(fungible_first=Fungible.LENT), T4, 6, id="or lent ones, where told to"
        ),
        pytest.param(
            rigid("j", 2, gpu_types=("v100",)),
            Lyra(fungible_first=Fungible.LENT),
            V100,
            2,
            id="and if they may",
        ),
        pytest.param(rigid("j", 2, gpu_types=("t4",)), Lyra(), T4, 6, id="three lent GPUs stand in for one"),
        pytest.param(a_job("j", 2, min_gpus=2, max_gpus=4), Lyra(), T4, 6, id="elastic ones lent servers"),
        pytest.param(
            a_job("j", 2, min_gpus=2, max_gpus=4, gpu_types=("v100",)), Lyra(), V100, 4, id="if they may"
        ),
        pytest.param(
            a_job("j", 2, min_gpus=2, max_gpus=4), Lyra(special_placement=False), V100, 4, id="or not at all"
        ),
    ],
)
def test_pools_are_preferred(job: Job, policy: Lyra, kind: int, count: int) -> None:
    snapshot = at_work(job, cluster=own_and_lent(1, 1), duration_s={"j": 10.0}, on_loan=[1])
    allocation = decided(snapshot, policy)[JobId("j")]
    assert (allocation.kind, allocation.gpus) == (kind, count)


@pytest.mark.parametrize(
    ("asks", "lent", "kind", "count"),
    [
        pytest.param(
            "resources: {accelerators: ['v100:2', 't4:6']}\nelastic: {min: 2, max: 6}",
            *(2, T4, 6),
            id="lent nodes first, the base on one and the rest on another",
        ),
        pytest.param(
            "resources: {accelerators: ['v100:2', 't4:6']}\nelastic: {min: 2, max: 6}",
            *(1, T4, 2),
            id="the base alone, where no other lent node is there",
        ),
        pytest.param(
            "resources: {gpus_per_worker: {v100: 2, t4: 6}}\nelastic: {min: 2, max: 6}",
            *(0, V100, 6),
            id="a worker that differs by type is shown in one size that suits all types",
        ),
    ],
)
def test_a_job_of_the_service_has_one_range_for_own_and_lent_gpus(
    asks: str, lent: int, kind: int, count: int
) -> None:
    """There no type says how many of its GPUs stand in for one."""
    cluster = own_and_lent(1, lent, stand_ins=1)
    job = spec_to_job(read_submission(f"run: x\n{asks}")[0], "j", 0.0, cluster)
    snapshot = at_work(job, cluster=cluster, duration_s={"j": 10.0}, on_loan=range(1, 1 + lent))
    allocation = decided(show_one_size(snapshot))[JobId("j")]
    assert (allocation.kind, allocation.gpus) == (kind, count)


def test_base_workers_of_jobs_that_mix_types_stay_on_own_servers_where_others_prefer_lent_ones() -> None:
    mixes = a_job("j", 2, min_gpus=2, max_gpus=4, heterogeneous=True)
    snapshot = at_work(mixes, cluster=own_and_lent(1, 1), duration_s={"j": 10.0}, on_loan=[1])
    allocation = decided(snapshot, Lyra(fungible_first=Fungible.LENT))[JobId("j")]
    assert allocation.nodes == (0, 1)
    assert allocation.shape == (2, 6)


def test_a_full_pool_sends_jobs_to_the_other_that_they_accept() -> None:
    jobs = [rigid("runs", 8), rigid("any", 2, 1), rigid("picky", 2, 1, gpu_types=("v100",))]
    duration_s = {"runs": 9.0, "any": 2.0, "picky": 1.0}
    snapshot = at_work(
        *jobs, cluster=own_and_lent(1, 1), duration_s=duration_s, held={"runs": grant(0, n0=8)}, on_loan=[1]
    )
    assert gpus(decided(snapshot)) == {"any": 6, "runs": 8}


def test_base_and_flexible_workers_are_on_lent_servers_of_their_own() -> None:
    job = a_job("j", 1, min_gpus=1, max_gpus=4)
    snapshot = at_work(job, cluster=own_and_lent(1, 3), duration_s={"j": 10.0}, on_loan=[1, 2, 3])
    allocation = decided(snapshot)[JobId("j")]
    assert allocation.nodes == (1, 2, 3)
    assert allocation.shape == (3, 8, 1)
    assert allocation.flexible == (0, 0b11111111, 0b1)


def test_a_base_takes_over_a_whole_server_of_flexible_workers() -> None:
    grows = a_job("grows", 1, min_gpus=1, max_gpus=3)
    held = {"grows": Allocation(1, (1, 2), (0b111, 0b111111), flexible=(0, 0b111111))}
    new = rigid("new", 2, 1, gpu_types=("t4",))
    snapshot = at_work(
        grows,
        new,
        cluster=own_and_lent(1, 2),
        duration_s={"grows": 9.0, "new": 1.0},
        held=held,
        on_loan=[1, 2],
    )
    placement = decided(snapshot)
    assert gpus(placement) == {"grows": 3, "new": 6}
    assert flexible_gpus(placement[JobId("grows")]) == 0


def test_lent_servers_that_are_not_on_loan_are_left_alone() -> None:
    job = rigid("j", 4, gpu_types=("t4",))
    snapshot = at_work(job, cluster=own_and_lent(1, 3), duration_s={"j": 10.0}, on_loan=[2])
    assert gpus(decided(snapshot)) == {}


def test_a_job_whose_server_has_gone_is_started_anew() -> None:
    jobs = [rigid("a", 1, gpu_types=("t4",))]
    snapshot = at_work(
        *jobs, cluster=own_and_lent(1, 2), duration_s={"a": 1.0}, held={"a": grant(1, n1=3)}, on_loan=[2]
    )
    assert decided(snapshot)[JobId("a")].nodes == (2,)


# ── jobs on several types ───────────────────────────────────────────────────────────────────────────────


def test_a_job_that_mixes_types_has_its_base_on_own_and_the_rest_on_lent_servers() -> None:
    job = a_job("j", 4, min_gpus=4, max_gpus=6, heterogeneous=True)
    snapshot = at_work(job, cluster=own_and_lent(1, 1), duration_s={"j": 10.0}, on_loan=[1])
    allocation = decided(snapshot)[JobId("j")]
    assert (allocation.nodes, allocation.shape) == ((0, 1), (4, 6))
    assert allocation.flexible == (0, 0b111111)


def test_one_that_fits_on_neither_is_split_between_them() -> None:
    job = rigid("j", 10, heterogeneous=True)
    snapshot = at_work(job, cluster=own_and_lent(1, 1), duration_s={"j": 10.0}, on_loan=[1])
    assert decided(snapshot)[JobId("j")].shape == (8, 6)


def test_their_flexible_workers_make_room_for_the_bases_of_others() -> None:
    held = {"mixes": Allocation(0, (0, 1), (0b1111, 0b111111), flexible=(0, 0b111111))}
    snapshot = at_work(
        a_job("mixes", 4, min_gpus=4, max_gpus=6, heterogeneous=True),
        rigid("new", 2, 1, gpu_types=("t4",)),
        cluster=own_and_lent(1, 1),
        duration_s={"mixes": 9.0, "new": 1.0},
        held=held,
        on_loan=[1],
    )
    placement = decided(snapshot)
    assert gpus(placement) == {"mixes": 6, "new": 6}
    assert placement[JobId("mixes")].nodes == (0,)


def test_they_come_last() -> None:
    jobs = [rigid("mixes", 8, heterogeneous=True), rigid("single", 8, 1, gpu_types=("v100",))]
    snapshot = at_work(
        *jobs, cluster=own_and_lent(1, 1), duration_s={"mixes": 1.0, "single": 100.0}, on_loan=[1]
    )
    assert gpus(decided(snapshot)) == {"single": 8}


# ── the policy as others see it ─────────────────────────────────────────────────────────────────────────


def test_it_decides_at_rounds_before_which_something_has_changed() -> None:
    policy = load_policy("lyra", round_s=30.0)
    assert policy.triggers.on == {Trigger.ROUND}
    assert (policy.triggers.round_s, policy.triggers.when_changed) == (30.0, True)
    assert policy.views == {View.ESTIMATED_DURATION}


def test_tuned_jobs_are_valued_by_their_goodput() -> None:
    """A job whose goodput does not grow gets nothing more, however much linear speed would give it."""
    policy = LyraTuned()
    cluster = a_cluster(8)
    jobs = [a_job("flat", 2, min_gpus=2, max_gpus=6), a_job("grows", 2, min_gpus=2, max_gpus=6)]
    snapshot = at_work(*jobs, cluster=cluster, duration_s={"flat": 900.0, "grows": 100.0})
    columns = policy.configurations(cluster)
    per_s = np.stack([np.ones(len(columns)), columns.gpus.astype(float)])
    speeds = speeds_of(columns, per_s, requested_per_s=floats([[1.0], [2.0]]))
    tuned = policy.allocate(replace(snapshot, jobs=replace(snapshot.jobs, known_evidence=[None] * 2)), speeds)
    assert tuned.gpus.tolist() == [2, 6]
    assert gpus(decided(snapshot)) == {"flat": 6, "grows": 2}
