"""Once no more jobs come, whoever can run at all is done within a bound, whatever the policy."""

from math import ceil

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stretto.model import Adaptivity, Cluster, GpuType, Job, JobId, Kind, Reward, cluster_of
from stretto.policies import POLICIES, load_policy
from stretto.policies.registry import describe
from stretto.sim.run import Setup, simulate
from stretto.sim.settings import SimSettings
from stretto.traces.workload import Truth, Workload

RESTART_S = 20.0
LONGEST_ROUND_S = 600.0  # of any policy: Optimus decides every ten minutes
TURNS = 12  # rounds, leases, profiling runs and restarts that one job may cost the others

CLUSTERS = (
    cluster_of("one", (GpuType("only"), 2, 4)),
    cluster_of("two", (GpuType("fast"), 1, 4), (GpuType("slow", speed=0.5), 2, 4)),
)


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """A few jobs of all sorts, each of which fits one node."""
    jobs, truths = [], []
    for number in range(draw(st.integers(1, 7))):
        gpus = draw(st.sampled_from([1, 1, 2, 3, 4]))
        at_s = float(draw(st.integers(0, 900)))
        adaptivity = draw(st.sampled_from([Adaptivity.RIGID, Adaptivity.STRONG_SCALING]))
        deadline_s = at_s + draw(st.integers(60, 5_000))
        jobs.append(
            Job(
                JobId(f"j{number}"),
                at_s,
                gpus,
                min_gpus=draw(st.sampled_from([1, gpus])),
                max_gpus=draw(st.sampled_from([gpus, min(2 * gpus, 4)])),
                adaptivity=adaptivity,
                kind=draw(st.sampled_from(Kind)),
                rewards=(Reward(deadline_s, 100.0),) if draw(st.booleans()) else (),
            )
        )
        truths.append(Truth(duration_s=float(draw(st.integers(1, 3_000)))))
    order = sorted(range(len(jobs)), key=lambda row: (jobs[row].submitted_s, jobs[row].id))
    return Workload("drawn", [jobs[row] for row in order], [truths[row] for row in order])


def bound_s(workload: Workload, cluster: Cluster) -> float:
    """All jobs one after the other, each on the fewest GPUs of the slowest type, and what changing costs."""
    slowest = min(gpu_type.speed for gpu_type in cluster.types)
    pairs = zip(workload.jobs, workload.truths, strict=True)
    work_s = sum(truth.duration_s * job.gpus / job.min_gpus / slowest for job, truth in pairs)
    leases = ceil(work_s / 300.0)  # the shortest lease; each may end with a restart
    return (
        workload.jobs[-1].submitted_s
        + work_s
        + TURNS * len(workload.jobs) * LONGEST_ROUND_S
        + leases * RESTART_S
    )


# Pollux, which does not see types, gave the second job GPUs of both, round after round.
ON_TWO_TYPES = Workload(
    "drawn",
    [
        Job(JobId("j2"), 152.0, 4, max_gpus=4, adaptivity=Adaptivity.STRONG_SCALING),
        Job(JobId("j0"), 339.0, 4, min_gpus=4, max_gpus=4, rewards=(Reward(974.0, 100.0),)),
        Job(JobId("j1"), 743.0, 1, max_gpus=1, rewards=(Reward(3_471.0, 100.0),)),
    ],
    [Truth(duration_s=1_755.0), Truth(duration_s=1_349.0), Truth(duration_s=470.0)],
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if name == "pollux" else ()) for name in POLICIES]
)
@settings(max_examples=6, deadline=None)
@given(workload=workloads(), cluster=st.sampled_from(CLUSTERS))
@example(workload=ON_TWO_TYPES, cluster=CLUSTERS[1])
def test_whoever_can_run_is_done_in_time(name: str, workload: Workload, cluster: Cluster) -> None:
    result = simulate(workload, Setup(cluster, load_policy(name), SimSettings(restart_s=RESTART_S)))
    assert result.done.all()
    assert result.completed_s.max() <= bound_s(workload, cluster)


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_says_who_may_starve(name: str) -> None:
    bound = describe(name, load_policy(name)).starvation
    assert bound.startswith(("bounded", "unbounded")), bound
