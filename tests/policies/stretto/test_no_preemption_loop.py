"""Nobody is stopped and started in turns: for what a job is stopped has to have happened."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drawn import scaled
from tests.sim.test_nobody_starves import CLUSTERS, RESTART_S, workloads

from stretto.model import Adaptivity, Cluster, GpuType, Job, JobId, Policy, cluster_of
from stretto.policies import load_policy
from stretto.sim.result import Result
from stretto.sim.run import Setup, simulate
from stretto.sim.settings import SimSettings
from stretto.traces.workload import Truth, Workload


def stops_without_cause(workload: Workload, cluster: Cluster, policy: Policy) -> int:
    """Stops of jobs beyond one for each time that one came, ended or was late while they were there.

    A job that changes its size is not stopped, though a recorded one restarts.
    """
    result = simulate(workload, Setup(cluster, policy, SimSettings(restart_s=RESTART_S)))
    submitted_s, deadline_s = result.requests.submitted_s, result.requests.deadline_s
    times_s = [*submitted_s, *result.completed_s, *deadline_s]
    lives = zip(submitted_s, result.completed_s, stops_of(result), strict=True)
    return sum(max(0, count - sum(since < at < until for at in times_s)) for since, until, count in lives)


def stops_of(result: Result) -> list[int]:
    """(jobs,) how often each had GPUs, none for a while, and then some again."""
    row, start_s, end_s, _, _ = result.history.columns()
    stretches = zip(row.tolist(), start_s.tolist(), end_s.tolist(), strict=True)
    stops = [0] * len(result.completed_s)
    for (job, _, until_s), (next_job, from_s, _) in pairwise(sorted(stretches)):
        stops[job] += job == next_job and from_s > until_s
    return stops


@settings(max_examples=scaled(1_000), deadline=None)
@given(workload=workloads(), cluster=st.sampled_from(CLUSTERS))
def test_a_job_is_stopped_only_where_something_happened(workload: Workload, cluster: Cluster) -> None:
    assert stops_without_cause(workload, cluster, load_policy("stretto")) == 0


def test_taking_turns_would_be_seen() -> None:
    jobs = [Job(JobId(name), 0.0, 1, adaptivity=Adaptivity.RIGID) for name in "ab"]
    workload = Workload("turns", jobs, [Truth(duration_s=6_000.0)] * 2)
    one_gpu = cluster_of("small", (GpuType("only"), 1, 1))
    impatient = load_policy("stretto", patience_s=100.0)  # serving who waits is worth more with every minute
    assert stops_without_cause(workload, one_gpu, load_policy("stretto")) == 0
    assert stops_without_cause(workload, one_gpu, impatient) >= 5
