"""A policy that changes its mind when it is asked again leaves no job of a queue without GPUs in vain."""

from tests.sim.made_worlds import Told, a_workload, seen

from stretto.model import Adaptivity, Constraints, Job, JobId, Queue, Shares, Snapshot, Speeds
from stretto.testing.builders import a_cluster


class Shy(Told):
    """Gives the large job all that it may have, but one GPU when it is shown alone."""

    def allocate(self, snapshot: Snapshot, speeds: Speeds) -> Shares:
        most = dict(zip(snapshot.jobs.ids, snapshot.jobs.max_gpus.tolist(), strict=True))
        line = {job: {0: 1} if job == "small" or len(most) == 1 else {1: gpus} for job, gpus in most.items()}
        return Told(script={0.0: line}).allocate(snapshot, speeds)


def a_job(name: str, at_s: float, gpus: int, priority: int) -> Job:
    return Job(
        JobId(name),
        at_s,
        gpus,
        min_gpus=1,
        max_gpus=gpus,
        adaptivity=Adaptivity.STRONG_SCALING,
        priority=priority,
        queue="a",
    )


def test_a_job_goes_on_where_the_one_that_it_was_left_out_for_gets_less_than_it_was_granted() -> None:
    workload = a_workload((a_job("small", 0.0, 1, 0), 900.0), (a_job("large", 60.0, 4, 2), 900.0))
    constraints = Constraints(queues={"a": Queue("a", 4)}, priorities_act=False)
    run = seen(Shy(), workload, a_cluster(4, 4), constraints=constraints)
    first = next(plan.placement for plan in run.plans if JobId("large") in plan.placement)
    assert {name: held.gpus for name, held in first.items()} == {"small": 1, "large": 1}
