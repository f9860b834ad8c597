import pytest

from stretto.model import Adaptivity, Cluster, GpuType, InputError, Job, JobId, Node, NodeId
from stretto.traces import Truth, Workload, check_against

# 8 small GPUs on 2 nodes; 16 large ones on 4 nodes, of which a job may have 2 nodes.
TYPES = (GpuType("small", aliases=("s",)), GpuType("large", max_nodes_per_job=2))
NODES = [("small", 4)] * 2 + [("large", 4)] * 4
CLUSTER = Cluster(
    "two", TYPES, tuple(Node(NodeId(f"n{i}"), kind, gpus) for i, (kind, gpus) in enumerate(NODES))
)

RIGID, ADAPTIVE = Adaptivity.RIGID, Adaptivity.ADAPTIVE


def a_workload(*jobs: Job) -> Workload:
    return Workload("jobs", jobs, tuple(Truth(duration_s=index) for index, _ in enumerate(jobs)))


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(Job(JobId("a"), 0, 8, adaptivity=RIGID), id="a rigid job that fits one type"),
        pytest.param(Job(JobId("a"), 0, 8, adaptivity=RIGID, gpu_types=("s",)), id="a type by its alias"),
        pytest.param(Job(JobId("a"), 0, 64, min_gpus=8), id="an adaptive job whose least fits"),
    ],
)
def test_a_job_that_can_run_passes(job: Job) -> None:
    workload = a_workload(job)
    assert check_against(workload, CLUSTER) is workload


@pytest.mark.parametrize(
    ("job", "message"),
    [
        pytest.param(
            Job(JobId("a"), 0, 30, adaptivity=RIGID),
            "gpus must be at most the 24 of two, got 30",
            id="cluster",
        ),
        pytest.param(
            Job(JobId("a"), 0, 9, adaptivity=RIGID), "at most 8, what one job can have of one type", id="type"
        ),
        pytest.param(
            Job(JobId("a"), 0, 16, min_gpus=9, gpu_types=("small",)),
            r"one type \(small\) of two, got 9",
            id="its",
        ),
        pytest.param(
            Job(JobId("a"), 0, 1, gpu_types=("tpu",)), "unknown gpu type 'tpu' on cluster two", id="name"
        ),
    ],
)
def test_a_job_that_can_never_run_is_refused_or_left_out(job: Job, message: str) -> None:
    good = Job(JobId("good"), 1, 1)
    with pytest.raises(InputError, match=f"jobs: job a: .*{message}"):
        check_against(a_workload(job, good), CLUSTER)
    kept = check_against(a_workload(job, good), CLUSTER, skip_bad=True)
    assert kept.jobs == (good,)
    assert kept.truths == (Truth(duration_s=1),)
    assert len(kept.skipped) == 1


def test_a_workload_of_which_nothing_can_run_is_refused() -> None:
    with pytest.raises(InputError, match="no job can run on cluster two: job a"):
        check_against(a_workload(Job(JobId("a"), 0, 99, adaptivity=RIGID)), CLUSTER, skip_bad=True)
