"""A service without clock, store or processes: the fold, the reconciler, and workers that the test plays."""

from dataclasses import dataclass, field

from stretto.jobfile import JobSpec
from stretto.model import Allocation, JobId, Memory, actions_between
from stretto.service.reconcile.held_gpus import GpuOccupancy
from stretto.service.reconcile.reconciler import Start, Stop, next_steps
from stretto.service.state import events as happened
from stretto.service.state.events import Event
from stretto.service.state.records import JobRecord, Worker, WorkerPhase
from stretto.service.state.reducer import actions_json, apply
from stretto.service.state.state import State
from stretto.service.state.status import state_of


@dataclass
class Scene:
    """Nodes n0, n1, … of `gpus` GPUs each."""

    nodes: int = 2
    gpus: int = 4
    state: State = field(default_factory=State)
    now_s: float = 0.0
    memory: Memory = None  # the policy's, after its last decision
    running: dict[str, Worker] = field(default_factory=dict)  # what the pretended backend runs, by id
    asked_to_stop: set[str] = field(default_factory=set)
    log: list[Event] = field(default_factory=list)
    times: list[float] = field(default_factory=list)  # at which each of these happened
    silent: set[int] = field(default_factory=set)  # nodes that do not answer; what runs there goes on unseen

    def __post_init__(self) -> None:
        self.tell(
            happened.Began(1.0e9),
            happened.Configured(
                "fifo", priorities="preempt", quotas="kept", reservations="kept", speeds="measured"
            ),
        )
        for index in range(self.nodes):
            self.tell(happened.NodeSeen(f"n{index}", "a100", self.gpus))

    def tell(self, *events: Event) -> None:
        for event in events:
            self.log.append(event)
            self.times.append(self.now_s)
            apply(self.state, event, self.state.seq + 1, self.now_s)

    def submit(
        self, name: str, gpus: int = 1, elastic: tuple[int, int] | None = None, **more: object
    ) -> JobRecord:
        spec: dict[str, object] = {"run": "true", "name": "job", "preemptible": True}
        accelerators = [{"gpu_type": "", "gpus": gpus}]
        spec["resources"] = {"accelerators": accelerators}
        if elastic is not None:
            spec["elastic"] = {"min_gpus": elastic[0], "max_gpus": elastic[1]}
        user = str(more.pop("user", "ada"))
        spec |= more
        self.tell(happened.Submitted(name, JobSpec.from_json(spec).to_json(), user))
        return self.state.jobs[name]

    def give(self, kind: int = 0, /, **wanted: dict[str, int] | None) -> None:
        """Decide: each job (its name after an underscore) is to hold these masks of nodes, or nothing."""
        placement = self.state.placement
        assert placement is not None
        changes: dict[JobId, Allocation | None] = {}
        for name, masks in wanted.items():
            held = sorted((self.state.node_index[node], mask) for node, mask in (masks or {}).items())
            changes[JobId(name.removeprefix("_"))] = (
                Allocation(kind, tuple(node for node, _ in held), tuple(mask for _, mask in held))
                if held
                else None
            )
        actions = actions_between(placement, placement.changed(changes))
        assert self.state.cluster is not None
        self.tell(
            happened.Decided(self.state.seq, self.now_s, (), tuple(actions_json(actions, self.state.cluster)))
        )

    def reconcile(self) -> None:
        """Until nothing follows any more; starts are carried out at once, stops only noted."""
        for _ in range(100):
            before = len(self.log)
            for record in self.state.open_jobs():
                steps = next_steps(self.state, record, self.taken(), self.now_s)
                self.tell(*steps.events)
                for command in steps.commands:
                    if command.worker.node in self.silent:
                        continue
                    if isinstance(command, Start) and command.worker.id not in self.running:
                        self.start(command.worker)
                    elif isinstance(command, Stop):
                        self.asked_to_stop.add(command.worker.id)
            if len(self.log) == before:
                return
        raise AssertionError("the reconciler does not come to rest")

    def start(self, worker: Worker) -> None:
        held = {(one.node, gpu) for one in self.running.values() for gpu in one.gpus}
        assert held.isdisjoint((worker.node, gpu) for gpu in worker.gpus), "a GPU is given twice"
        self.running[worker.id] = worker
        self.tell(happened.WorkersRan(worker.job, (worker.id,)))

    def ready(self, *names: str) -> None:
        for name in names:
            self.tell(happened.WorkerReady(name.split(".")[0], name))

    def join(self, job: str) -> None:
        """Everybody of the newest generation trains in it; whoever is no more in it ends with status 0."""
        record = self.state.jobs[job]
        number, members = record.members.number, record.members.workers
        for name in members:
            self.tell(happened.Joined(job, name, number))
        for worker in list(record.alive):
            if worker.joined and worker.id not in members and worker.id in self.running:
                self.end(worker.id, 0)

    def end(self, name: str, status: int) -> None:
        """A worker's processes are gone; nobody hears of it while its node is silent."""
        if self.running.pop(name).node not in self.silent:
            self.tell(happened.WorkerEnded(name.split(".")[0], name, status))

    def silence(self, node: int) -> None:
        """A node does not answer any more."""
        self.silent.add(node)
        self.tell(happened.NodeLost(f"n{node}", "silent"))

    def bury(self, node: int) -> None:
        """Nobody waits for what runs on a node any more."""
        self.tell(happened.NodeDead(f"n{node}", 300.0))

    def answer(self, node: int) -> None:
        """A silent node shows what runs there: who is not wanted is stopped, who is gone is gone."""
        self.silent.discard(node)
        self.tell(happened.NodeSeen(f"n{node}", "a100", self.gpus))
        for record in self.state.open_jobs():
            for worker in record.alive:
                if worker.node == node and worker.id not in self.running:
                    self.tell(happened.WorkerEnded(record.id, worker.id, 137))
        self.asked_to_stop |= self.strays()

    def strays(self) -> set[str]:
        """What runs although the log knows nothing of it, or says that it has ended."""
        return {
            name
            for name, worker in self.running.items()
            if (known := self.state.jobs[worker.job].workers.get(name)) is None
            or known.life is WorkerPhase.ENDED
        }

    def taken(self) -> GpuOccupancy:
        held = GpuOccupancy()
        for name in self.strays():
            held.put(f"seen:{name}", [(self.running[name].node, self.running[name].mask)])
        for record in self.state.open_jobs():
            workers = [worker for worker in record.workers.values() if worker.life is not WorkerPhase.ENDED]
            held.put(record.id, [(worker.node, worker.mask) for worker in workers])
        return held

    def names(self, job: str) -> list[str]:
        """Workers of a job that run."""
        return sorted(name for name in self.running if name.split(".")[0] == job)

    def standing(self, job: str) -> str:
        return state_of(self.state, self.state.jobs[job]).value
