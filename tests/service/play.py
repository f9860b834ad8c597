"""A policy that decides over a scene, event by event, as the service lets it."""

from tests.service.scene import Scene

from stretto.jobfile import JobSpec
from stretto.model import Plan, Trigger
from stretto.scheduler.round import Scheduler, decide
from stretto.service.scheduling.decision import decided, snapshot_for
from stretto.service.scheduling.scheduler import scheduler_of
from stretto.service.scheduling.snapshot_builder import SnapshotBuilder
from stretto.service.state import events as happened
from stretto.service.state.events import Configured

DUE = frozenset({Trigger.ROUND, Trigger.ARRIVAL, Trigger.COMPLETION, Trigger.CAPACITY, Trigger.WAKE})


def spec_of(gpus: int, **more: object) -> JobSpec:
    resources = {"accelerators": [{"gpu_type": "", "gpus": gpus}]}
    given = {"run": "true", "name": "job", "resources": resources, "preemptible": True, **more}
    return JobSpec.from_json(given)


class Deciding:
    """A scene in which a policy decides; jobs really hold what was decided."""

    def __init__(self, policy: str, nodes: int = 2, gpus: int = 4) -> None:
        self.scene = Scene(nodes=nodes, gpus=gpus)
        self.scheduler: Scheduler = scheduler_of(Configured(policy))
        self.observer = SnapshotBuilder(self.scheduler.policy.views)

    def submit(self, name: str, queue: str, gpus: int, most: int = 0, **more: object) -> None:
        if most > gpus:
            more = {"elastic": {"min_gpus": gpus, "max_gpus": most}, **more}
        user = str(more.pop("user", "ada"))
        more = {"queue": queue, "expected_time_s": 3600.0, **more}
        self.scene.tell(happened.Submitted(name, spec_of(gpus, **more).to_json(), user))

    def queue(self, name: str, quota: int | None, borrow: int = 0) -> None:
        self.scene.tell(happened.QueueSet(name, quota, borrow))

    def decide(self) -> Plan:
        scene = self.scene
        scene.now_s += 30.0
        snapshot = snapshot_for(self.scheduler, self.observer, scene.state, scene.now_s, DUE, scene.memory)
        plan = decide(snapshot, self.scheduler)
        scene.tell(decided(snapshot, plan, scene.state.seq, 1.0))
        scene.memory = plan.memory
        return plan

    def held(self, queue: str) -> int:
        jobs = self.scene.state.open_jobs()
        return sum(job.accounting.held_gpus for job in jobs if job.spec.queue == queue)

    def gpus(self, name: str) -> int:
        return self.scene.state.jobs[name].accounting.held_gpus

    def end(self, name: str) -> None:
        self.scene.tell(happened.Ended(name, "COMPLETED", 0))
