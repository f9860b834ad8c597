"""Accounts within their shares, under a policy that likes one user best."""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import pytest

from stretto.model import (
    ON_CHANGE,
    Account,
    Adaptivity,
    Allocation,
    Cluster,
    Configurations,
    Constraints,
    FairShare,
    GpuType,
    Job,
    JobId,
    Plan,
    Queue,
    Shares,
    Snapshot,
    Speeds,
    Triggers,
    Verb,
    View,
    Why,
    cluster_of,
    configurations_from,
    no_speeds,
)
from stretto.model.plan import waiting_for
from stretto.place.consolidate import Relaxed
from stretto.scheduler.fair_share import Accounts, entitled_gpus
from stretto.scheduler.round import Scheduler, decide
from stretto.testing.builders import a_cluster, a_job, a_snapshot, shares_held

HOUR = 3_600.0
LIMITS = FairShare(limits=True)


@dataclass(frozen=True)
class Ada:
    """Gives jobs of ada all that they may have, then others; whoever runs goes on on what it holds."""

    sizes_jobs: bool = False
    asked: list[tuple[str, ...]] = field(default_factory=list)  # jobs that were shown, by question

    name: ClassVar[str] = "ada"
    views: ClassVar[frozenset[View]] = frozenset()
    placer: ClassVar[str] = "relaxed"
    triggers: ClassVar[Triggers] = ON_CHANGE

    def configurations(self, cluster: Cluster) -> Configurations:
        """One that stands for all, where it sizes jobs."""
        return configurations_from([(1, 1, 0)] if self.sizes_jobs else [])

    def allocate(self, snapshot: Snapshot, speeds: Speeds) -> Shares:
        """Her jobs first, whatever the order of the rows."""
        jobs = snapshot.jobs
        self.asked.append(jobs.ids)
        most = jobs.max_gpus if self.sizes_jobs else jobs.gpus
        gpus, kind, left = jobs.held_gpus.copy(), jobs.held_kind.copy(), snapshot.free.copy()
        for row in sorted(range(len(jobs)), key=lambda row: (jobs[row].user != "ada", row)):
            of = int(kind[row] if kind[row] >= 0 else np.argmax(np.where(jobs.allowed_kinds[row], left, -1)))
            more = min(int(most[row] - gpus[row]), int(left[of]))
            if gpus[row] + more >= (jobs.min_gpus[row] if self.sizes_jobs else most[row]):
                gpus[row], kind[row] = gpus[row] + more, of
                left[of] -= more
        why = waiting_for(Why.NO_FREE_GPUS, len(jobs))
        why.code[gpus > 0] = 0
        return Shares(gpus, kind, np.zeros_like(gpus), why)


class NoSpeeds:
    """Knows nothing."""

    def estimate(self, snapshot: Snapshot, configurations: Configurations) -> Speeds:
        """No speed of anything."""
        return no_speeds(len(snapshot.jobs), len(snapshot.cluster.types), configurations)


def jobs_of(user: str, count: int, gpus: int = 1, tag: str = "", **rest: Any) -> list[Job]:
    fixed: dict[str, Any] = {} if "min_gpus" in rest else {"adaptivity": Adaptivity.RIGID}
    return [a_job(f"{user}{tag}{number}", gpus, user=user, **fixed, **rest) for number in range(count)]


def decided(
    *jobs: Job,
    fair: FairShare = LIMITS,
    policy: Ada | None = None,
    held: dict[str, Allocation] | None = None,
    cluster: Cluster | None = None,
    **constraints: Any,
) -> Plan:
    snapshot = a_snapshot(*jobs, cluster=cluster or a_cluster(4), allocations=held)
    snapshot = replace(snapshot, constraints=Constraints(fair_share=fair, **constraints))
    return decide(snapshot, Scheduler(NoSpeeds(), policy or Ada(), Relaxed()))


def gpus_by_user(plan: Plan) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, gpus in shares_held(plan.placement).items():
        found[name.rstrip("0123456789")] = found.get(name.rstrip("0123456789"), 0) + gpus
    return found


def held(**allocations: int) -> dict[str, Allocation]:
    """Jobs on the first node, one after the other."""
    found, taken = {}, 0
    for name, gpus in allocations.items():
        found[name] = Allocation(0, (0,), (((1 << gpus) - 1) << taken,))
        taken += gpus
    return found


@pytest.mark.parametrize(
    ("fair", "expected"),
    [
        pytest.param(FairShare(), {"ada": 4}, id="an order alone decides nothing under this policy"),
        pytest.param(LIMITS, {"ada": 2, "bob": 2}, id="equal shares"),
        pytest.param(FairShare(user_shares={"bob": 3}, limits=True), {"ada": 1, "bob": 3}, id="by shares"),
        pytest.param(
            FairShare({("default", "ada"): 9 * HOUR}, limits=True), {"bob": 4}, id="by what each has had"
        ),
        pytest.param(FairShare({("default", "bob"): 9 * HOUR}, limits=True), {"ada": 4}, id="either way"),
        pytest.param(
            FairShare(held_gpus={("default", "ada"): 1}, limits=True),
            {"ada": 2, "bob": 2},
            id="what is held elsewhere counts as a job that came before",
        ),
    ],
)
def test_users_have_their_shares_of_what_is_free(fair: FairShare, expected: dict[str, int]) -> None:
    assert gpus_by_user(decided(*jobs_of("ada", 9), *jobs_of("bob", 9), fair=fair)) == expected


def test_what_somebody_does_not_ask_for_goes_to_others() -> None:
    policy = Ada()
    plan = decided(*jobs_of("ada", 9), *jobs_of("bob", 1), *jobs_of("cyd", 1), policy=policy)
    assert gpus_by_user(plan) == {"ada": 2, "bob": 1, "cyd": 1}
    reasons = {plan.jobs.ids[row]: plan.why.of(row) for row in range(len(plan.jobs))}
    assert {why for name, why in reasons.items() if name not in plan.placement} == {Why.OVER_SHARE}
    row = plan.jobs.ids.index(JobId("ada8"))
    assert plan.why.evidence[row] == "ada in queue default: entitled to 2 GPUs while others wait"
    assert len(plan.why.evidence) == 7


@pytest.mark.parametrize(
    ("others", "more"),
    [
        pytest.param(jobs_of("bob", 1, gpus=5), {}, id="that is too large"),
        pytest.param(
            jobs_of("bob", 1, gpus=2),
            {"cluster": a_cluster(1, 1, 1, 1)},
            id="for which there is no place, if only on one node",
        ),
    ],
)
def test_no_gpu_is_idle_for_a_job(others: list[Job], more: dict[str, Any]) -> None:
    if "cluster" in more:
        kind = replace(GpuType("gpu"), max_nodes_per_job=1)
        more = {"cluster": cluster_of("ones", (kind, 4, 1))}
    plan = decided(*jobs_of("ada", 9), *others, **more)
    assert gpus_by_user(plan) == {"ada": 4}


def test_who_runs_is_not_stopped() -> None:
    running = held(ada0=1, ada1=1, ada2=1, ada3=1)
    policy = Ada()
    assert decided(*jobs_of("ada", 9), *jobs_of("bob", 2), held=running, policy=policy).actions == ()
    assert len(policy.asked) == 1, "nothing could be given up, so there is nothing to ask"


def test_who_runs_and_could_be_smaller_makes_room_in_place() -> None:
    large = jobs_of("ada", 1, 4, min_gpus=1, max_gpus=4)
    plan = decided(*large, *jobs_of("bob", 2), held=held(ada0=4), policy=Ada(sizes_jobs=True))
    assert [(one.verb, one.job) for one in plan.actions] == [
        (Verb.SHRINK, "ada0"),
        (Verb.START, "bob0"),
        (Verb.START, "bob1"),
    ]


@pytest.mark.parametrize(
    ("job", "sizes_jobs"),
    [
        pytest.param({"min_gpus": 1, "max_gpus": 4}, False, id="that no policy would let grow again"),
        pytest.param({"min_gpus": 1, "max_gpus": 4, "preemptible": False}, True, id="that stays as it is"),
        pytest.param({}, True, id="of one size"),
    ],
)
def test_a_job_keeps_its_size(job: dict[str, Any], sizes_jobs: bool) -> None:
    large = jobs_of("ada", 1, 4, **job)
    plan = decided(*large, *jobs_of("bob", 2), held=held(ada0=4), policy=Ada(sizes_jobs))
    assert plan.actions == ()


def test_it_is_made_smaller_to_a_permitted_size_only() -> None:
    large = jobs_of("ada", 1, 4, min_gpus=1, max_gpus=4)
    plan = decided(
        *large,
        *jobs_of("bob", 3),
        held=held(ada0=4),
        policy=Ada(sizes_jobs=True),
        sizes={"ada0": (1, 4)},
    )
    assert gpus_by_user(plan) == {"ada": 1, "bob": 3}


def test_a_job_does_not_grow_on_what_others_wait_for() -> None:
    growing = jobs_of("ada", 1, 4, min_gpus=1, max_gpus=4)
    plan = decided(*growing, *jobs_of("bob", 2), held=held(ada0=1), policy=Ada(sizes_jobs=True))
    assert gpus_by_user(plan) == {"ada": 2, "bob": 2}


def test_only_gpus_of_a_type_that_helps_are_given_up() -> None:
    cluster = cluster_of("two types", (GpuType("t4"), 1, 4), (GpuType("a100"), 1, 4))
    mine = [*jobs_of("ada", 4, gpu_types=("t4",)), *jobs_of("ada", 4, tag="0", gpu_types=("a100",))]
    plan = decided(*mine, *jobs_of("bob", 2, gpu_types=("a100",)), cluster=cluster)
    assert gpus_by_user(plan) == {"ada": 6, "bob": 2}


def test_priorities_come_first() -> None:
    urgent, fair = jobs_of("ada", 3, priority=1), replace(LIMITS, held_gpus={("default", "ada"): 3})
    jobs = [*urgent, *jobs_of("ada", 3, tag="0"), *jobs_of("bob", 3)]
    assert gpus_by_user(decided(*jobs, held=held(ada0=1, ada1=1, ada2=1), fair=fair)) == {"ada": 3, "bob": 1}


def test_so_do_quotas() -> None:
    queues = {"lab": Queue("lab", 3, 1), "default": Queue("default", 1, 3, is_default=True)}
    plan = decided(*jobs_of("ada", 9, queue="lab"), *jobs_of("bob", 9), queues=queues)
    assert gpus_by_user(plan) == {"ada": 3, "bob": 1}


def test_one_user_is_decided_in_one_question() -> None:
    policy = Ada()
    decided(*jobs_of("ada", 9), policy=policy)
    decided(*jobs_of("ada", 1), *jobs_of("bob", 1), policy=policy)
    assert len(policy.asked) == 2


A, B, C = ("q", "a"), ("q", "b"), ("r", "c")


@pytest.mark.parametrize(
    ("fair", "asked", "expected"),
    [
        pytest.param(FairShare(), {A: [1] * 9, B: [1] * 2}, {A: 6, B: 2}, id="no more than is asked for"),
        pytest.param(FairShare(), {A: [1] * 9, B: [1] * 9, C: [1] * 9}, {A: 2, B: 2, C: 4}, id="by queue"),
        pytest.param(FairShare(), {A: [4] * 9, B: [1] * 9}, {A: 4, B: 4}, id="whole jobs"),
        pytest.param(FairShare(), {A: [5] * 9, B: [2] * 9}, {A: 5, B: 2}, id="without what is left over"),
    ],
)
def test_gpus_are_dealt_out(
    fair: FairShare, asked: dict[Account, list[int]], expected: dict[Account, int]
) -> None:
    sizes = np.array([gpus for one in asked.values() for gpus in one])
    accounts = Accounts.of([name for name, one in asked.items() for _ in one])
    found = entitled_gpus(8, sizes, accounts, fair)
    assert dict(zip(asked, found.tolist(), strict=True)) == expected


def test_who_mixes_types_gives_up_gpus_of_the_type_that_others_wait_for() -> None:
    cluster = cluster_of("two", (GpuType("own"), 1, 2), (GpuType("lent"), 1, 2))
    (ada,) = jobs_of("ada", 1, 4, min_gpus=1, heterogeneous=True, adaptivity=Adaptivity.STRONG_SCALING)
    (bob,) = jobs_of("bob", 1, 2, gpu_types=("lent",))
    on_both = {"ada0": Allocation(0, (0, 1), (0b11, 0b11))}
    plan = decided(ada, bob, policy=Ada(sizes_jobs=True), held=on_both, cluster=cluster)
    assert gpus_by_user(plan) == {"ada": 2, "bob": 2}
    assert plan.placement[JobId("ada0")].nodes == (0,)
