"""Whatever the policy is, a job of workers of several GPUs has whole ones, each on one node."""

from dataclasses import replace

import pytest
from tests.service.play import Deciding

from stretto.experiments.spec import RunSpec, run_spec
from stretto.model import Allocation, Job, JobId, Placement
from stretto.policies.registry import POLICIES
from stretto.scheduler.constraints.whole_workers import in_one_size, whole_workers_of
from stretto.service.scheduling.scheduler import scheduler_of
from stretto.service.scheduling.snapshot_builder import SnapshotBuilder
from stretto.service.state import events as happened
from stretto.service.state.events import Configured
from stretto.testing.builders import a_job

SIZES = {"a100": 2, "rtx": 8}
RESOURCES = {"accelerators": [], "gpus_per_worker": 2, "replica_gpus": SIZES}


class Hybrid(Deciding):
    """Nodes of eight GPUs, one of each type."""

    def __init__(self, policy: str, *types: str) -> None:
        super().__init__(policy, 0, 8)
        configured = Configured(policy, speeds="measured", workers="whole")
        self.scheduler = scheduler_of(configured)
        self.observer = SnapshotBuilder(self.scheduler.policy.views)
        self.scene.tell(configured)
        for index, gpu_type in enumerate(types):
            self.scene.tell(happened.NodeSeen(f"n{index}", gpu_type, 8))

    def hybrid(self, name: str) -> None:
        self.scene.submit(name, elastic=(2, 16), resources=RESOURCES)


def whole(placement: Placement, job: str, type_names: tuple[str, ...]) -> bool:
    allocation = placement[job]  # type: ignore[index]
    each = SIZES[type_names[allocation.kind]]
    return all(gpus % each == 0 for gpus in allocation.shape)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_gives_whole_workers_of_the_size_of_each_type(policy: str) -> None:
    scene = Hybrid(policy, "a100", "rtx", "other")
    for name in ("1", "2"):
        scene.hybrid(name)
    scene.scene.submit("3", gpus=3)
    plan = scene.decide()
    names = scene.scene.state.cluster.type_names  # type: ignore[union-attr]
    served = [job for job in ("1", "2") if job in plan.placement]
    assert served
    assert all(whole(plan.placement, job, names) for job in served)
    assert "other" not in {names[plan.placement[job].kind] for job in served}  # type: ignore[index]


def test_sia_gives_one_replica_of_the_size_of_the_type_that_is_there() -> None:
    for gpu_type, gpus in SIZES.items():
        scene = Hybrid("sia", gpu_type)
        scene.hybrid("1")
        assert scene.decide().placement["1"].gpus == gpus  # type: ignore[index]


@pytest.mark.parametrize(
    ("least", "most", "expected"),
    [
        pytest.param(2, 16, (8, 16, 8, ("a100", "rtx")), id="by what suits all types"),
        pytest.param(2, 12, (8, 8, 8, ("a100", "rtx")), id="no more than it may have"),
        pytest.param(2, 6, (2, 6, 2, ("a100",)), id="without the type whose workers are too large"),
        pytest.param(10, 12, (10, 12, 2, ("a100",)), id="without the type of which none lies in its range"),
    ],
)
def test_policies_of_one_size_see_a_job_that_fits_every_type(
    least: int, most: int, expected: tuple[int, int, int, tuple[str, ...]]
) -> None:
    job = a_job("a", least, min_gpus=least, max_gpus=most, gpus_per_worker=2, replica_gpus=SIZES)
    assert sizes_of(in_one_size(job, ("a100", "rtx"), [8, 8])) == expected


def sizes_of(job: Job) -> tuple[int, int, int, tuple[str, ...]]:
    return job.min_gpus, job.max_gpus, job.gpus_per_worker, job.gpu_types


def test_a_type_of_small_workers_goes_too_where_its_workers_do_not_fill_the_range() -> None:
    job = a_job("a", 8, min_gpus=8, max_gpus=8, gpus_per_worker=1, replica_gpus={"a100": 3, "rtx": 4})
    assert sizes_of(in_one_size(job, ("a100", "rtx"), [8, 8])) == (8, 8, 4, ("rtx",))


@pytest.mark.parametrize(("workers", "gives"), [("whole", 8), ("in range", 10)])
def test_a_job_runs_on_the_type_that_suits_its_range_unless_the_log_is_older(
    workers: str, gives: int
) -> None:
    scene = Hybrid("fifo", "a100", "a100", "rtx", "rtx")
    scene.scene.tell(Configured("fifo", speeds="measured", workers=workers))
    scene.scene.submit("1", elastic=(10, 12), resources=RESOURCES)
    allocation = scene.decide().placement.get(JobId("1"))
    assert (0 if allocation is None else allocation.gpus) == gives


def test_gpus_that_make_no_whole_worker_are_left() -> None:
    split = Allocation(0, (0, 1, 2), (0b111, 0b1, 0b1100))
    assert whole_workers_of(split, 2) == replace(split, nodes=(0, 2), masks=(0b11, 0b1100))
    assert whole_workers_of(split, 1) is split
    assert whole_workers_of(split, 4) is None


def test_where_the_world_lets_jobs_hold_a_part_of_a_worker_priorities_leave_their_request_alone() -> None:
    # Under this policy a job of four-GPU workers comes to hold five, beside jobs of other priorities.
    settings = {"lend.rule": "lyra", "sim.resize_s": "1"}
    result = run_spec(RunSpec("mixed-64", "mixed:jobs=40,hours=0.3", "cornucopia", seed=1, settings=settings))
    assert result.done.all()
