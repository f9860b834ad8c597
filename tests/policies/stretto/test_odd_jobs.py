"""Whole decisions of Stretto about jobs that are not as most are."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from stretto.model import (
    Adaptivity,
    Cluster,
    Configurations,
    Constraints,
    Durations,
    FairShare,
    GpuType,
    Job,
    JobId,
    Kind,
    Plan,
    Promise,
    Reward,
    Snapshot,
    Speeds,
    cluster_of,
)
from stretto.place import load_placer
from stretto.policies import load_policy
from stretto.policies.stretto.lifetimes import Lifetimes
from stretto.policies.stretto.policy import Remembered, Stretto
from stretto.policies.stretto.promises import Promises
from stretto.scheduler.round import Scheduler, decide
from stretto.testing.builders import (
    a_cluster,
    a_job,
    a_snapshot,
    grant,
    nothing_shown,
    some_progress,
    speeds_of,
)

NOW_S = 10_000.0
RIGID: Mapping[str, Any] = {"adaptivity": Adaptivity.RIGID}
ONE_GPU, NODE = a_cluster(1), a_cluster(4)


@dataclass(frozen=True)
class InProportion:
    """An estimator: so many steps a second and GPU of each job, on any number of them."""

    per_gpu_s: Callable[[Job], float]

    def estimate(self, snapshot: Snapshot, columns: Configurations) -> Speeds:
        jobs = [snapshot.jobs[row] for row in range(len(snapshot.jobs))]
        types = len(snapshot.cluster.types)
        per_s = np.array([self.per_gpu_s(job) for job in jobs])[:, None]
        requested_per_s = per_s * snapshot.jobs.gpus[:, None] * np.ones(types)
        return speeds_of(columns, per_s * columns.gpus, types=types, requested_per_s=requested_per_s)


def shown(
    jobs: Sequence[Job],
    cluster: Cluster = ONE_GPU,
    left: Sequence[float] = (),
    estimates_s: Sequence[float] = (),
    progress: Mapping[str, Any] | None = None,
    **rest: Any,
) -> Snapshot:
    """left: steps of each, NaN: unknown. estimates_s: what owners say."""
    types, nothing = len(cluster.types), np.full(len(jobs), np.nan)
    constraints = rest.pop("constraints", Constraints())
    snapshot = a_snapshot(
        *jobs,
        cluster=cluster,
        allocations=rest.pop("held", None),
        now_s=rest.pop("now_s", NOW_S),
        known_progress=some_progress(len(jobs), **(progress or {})),
        known_evidence=nothing_shown(len(jobs), types),
        known_work=np.array(left or [1e5] * len(jobs), dtype=np.float64),
        known_estimates=Durations(nothing, np.array(estimates_s or nothing, dtype=np.float64)),
        **rest,
    )
    return replace(snapshot, constraints=constraints)


def scheduler_of(policy: Any, per_gpu_s: Callable[[Job], float]) -> Scheduler:
    return Scheduler(InProportion(per_gpu_s), policy, load_placer("whole-nodes"))


def planned(
    jobs: Sequence[Job],
    cluster: Cluster = ONE_GPU,
    policy: Any = None,
    per_gpu_s: Callable[[Job], float] = lambda _: 1.0,
    **rest: Any,
) -> Plan:
    return decide(shown(jobs, cluster, **rest), scheduler_of(policy or Stretto(), per_gpu_s))


def gpus_of(plan: Plan) -> dict[str, int]:
    return {str(job): plan.placement[job].gpus for job in plan.jobs.ids if job in plan.placement}


def newcomer(name: str, **rest: Any) -> Job:
    return a_job(name, at_s=NOW_S - 1.0, **{**RIGID, **rest})


def flexible(name: str, **rest: Any) -> Job:
    return a_job(name, at_s=0.0, **{"gpus": 4, "min_gpus": 1, "max_gpus": 4, **rest})


@pytest.mark.parametrize(("fairness", "served"), [(1.0, "2"), (0.0, "1")])
@pytest.mark.parametrize("priority", [0, 3])
def test_a_user_who_has_had_little_counts_more_in_a_whole_decision(
    fairness: float, served: str, priority: int
) -> None:
    fair = FairShare(usage_gpu_s={("default", "ann"): 9e5, ("default", "bob"): 1e5})
    jobs = [newcomer(name, user=user) for name, user in (("1", "ann"), ("2", "bob"))]
    others = [newcomer("3", gpus=2, priority=priority, user="ann")]  # of a level of its own: it fits nowhere
    plan = planned(
        [*jobs, *others],
        policy=Stretto(fairness=fairness),
        left=[1_000.0, 1_200.0, 1e5],
        constraints=Constraints(fair_share=fair),
    )
    assert gpus_of(plan) == {served: 1}


@pytest.mark.parametrize("runs", [False, True])
def test_a_reserved_job_of_unknown_speed_stops_no_decision(runs: bool) -> None:
    jobs = [a_job("1", at_s=0.0, gpus=2, reserved=(1, 2, "gpu"), **RIGID), newcomer("2")]
    plan = planned(
        jobs,
        a_cluster(4),
        per_gpu_s=lambda job: np.nan if job.id == "1" else 1.0,
        held={"1": grant(0, n0=2)} if runs else None,
    )
    assert gpus_of(plan) == {"1": 2, "2": 1}


@pytest.mark.parametrize("per_s", [1e-3, 1.0, 1e3])
def test_a_length_that_is_unknown_is_no_number_of_steps(per_s: float) -> None:
    lengths_s = [1_000.0, 1_200.0, np.nan]
    plan = planned(
        [newcomer(name) for name in "123"],
        per_gpu_s=lambda job: per_s if job.id != "3" else 1.0,
        left=[length * per_s for length in lengths_s],
    )
    assert gpus_of(plan) == {"1": 1}


@pytest.mark.parametrize("executed_s", [0.0, 5_000.0])
def test_what_a_waiting_job_has_lost_already_does_not_make_it_longer(executed_s: float) -> None:
    job = newcomer("1", checkpoints=False, rewards=(Reward(NOW_S + 2_000.0, 100.0),))
    policy = Stretto(promised_share=1.0)
    snapshot = shown([job], left=[1_000.0], progress={"executed_s": [executed_s]})
    speeds = InProportion(lambda _: 1.0).estimate(snapshot, policy.configurations(snapshot.cluster))
    assert policy.outlook(snapshot, speeds, JobId("1")).promise is Promise.YES


@pytest.mark.parametrize("moved_s", [-2_000.0, -0.1, 0.0, 0.1, 500.0])
def test_a_promise_follows_its_deadline_when_the_clock_is_set(moved_s: float) -> None:
    due_s = NOW_S + 4_000.0
    memory = Remembered(Lifetimes(), Promises((JobId("1"),), (due_s,)))
    steps = (Reward(due_s + moved_s, 100.0), Reward(due_s + 9_000.0 + moved_s, 10.0))
    jobs = [newcomer("1", rewards=steps), newcomer("2", rewards=(Reward(due_s, 1_000.0),))]
    snapshot = shown(jobs, left=[1_500.0, 1_500.0], memory=memory)
    plan = decide(snapshot, scheduler_of(Stretto(promised_share=1.0), lambda _: 1.0))
    assert isinstance(plan.memory, Remembered)
    promises = dict(zip(plan.memory.promises.ids, plan.memory.promises.due_s, strict=True))
    assert promises[JobId("1")] == due_s + moved_s


def test_jobs_that_nothing_can_serve_do_not_crowd_a_cluster() -> None:
    jobs = [flexible("1"), flexible("2")]
    alone = planned(jobs, NODE, left=[100.0, 1_000.0])
    beside = planned([*jobs, newcomer("3", gpus=100_000)], NODE, left=[100.0, 1_000.0, 1e5])
    assert gpus_of(alone) == gpus_of(beside)
    without_b = cluster_of("no B", (GpuType("gpu"), 1, 4), (GpuType("B"), 1, 60))
    of_b = newcomer("3", gpus=60, gpu_types=("B",))
    b_is_down = replace(
        shown([*jobs, of_b], without_b, [100.0, 1_000.0, 1e5]), usable=np.array([True, False])
    )
    assert gpus_of(alone) == gpus_of(decide(b_is_down, scheduler_of(Stretto(), lambda _: 1.0)))


def test_gpus_that_stand_in_for_one_are_counted_as_one_where_jobs_crowd() -> None:
    jobs = [flexible("1"), flexible("2"), *(newcomer(str(number), gpus=2) for number in range(3, 9))]
    left = [100.0, 10_000.0, *[1e6] * 6]
    plain = gpus_of(planned(jobs, NODE, left=left))
    standing_in = cluster_of("four for one", (GpuType("gpu", stand_ins=4), 1, 16))
    plan = planned(jobs, standing_in, per_gpu_s=lambda _: 0.25, left=left)
    assert gpus_of(plan) == {job: 4 * gpus for job, gpus in plain.items()}


@pytest.mark.parametrize("gpus", [2, 3, 4])
def test_a_job_that_saves_nothing_goes_on_whatever_number_it_has(gpus: int) -> None:
    jobs = [flexible("1", checkpoints=False), newcomer("2", gpus=4)]
    plan = planned(
        jobs,
        NODE,
        left=[1e5, 100.0],
        held={"1": grant(0, n0=gpus)},
        progress={"executed_s": [9_000.0, 0.0], "resize_s": [1.0, 1.0]},
    )
    assert "1" in gpus_of(plan)


@pytest.mark.parametrize("worth", [1.0, 100.0, 1e4, 1e6, 1e12])
def test_somebody_who_waits_comes_before_any_deadline(worth: float) -> None:
    due = (Reward(NOW_S + 1_140.0, worth),)
    jobs = [newcomer("1", gpus=4, rewards=due), newcomer("2", kind=Kind.INTERACTIVE)]
    assert "2" in gpus_of(planned(jobs, NODE, left=[4_000.0, 1_000.0]))


@pytest.mark.parametrize("round_s", [0.1, 7.3, 60.0])
def test_the_next_round_is_never_now(round_s: float) -> None:
    for number in range(1, 200):
        at_s = number * round_s
        plan = planned([flexible("1")], NODE, policy=Stretto(round_s=round_s), now_s=at_s)
        assert plan.wake_s is not None
        assert plan.wake_s > at_s


def test_sia_bears_a_reserved_job_of_unknown_speed_as_well() -> None:
    jobs = [a_job("1", at_s=0.0, gpus=2, reserved=(1, 2, "gpu"), **RIGID), newcomer("2")]
    unknown = planned(jobs, NODE, load_policy("sia"), lambda job: np.nan if job.id == "1" else 1.0)
    assert gpus_of(unknown)["1"] == 2
