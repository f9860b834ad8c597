"""Whatever happens in whatever order: no GPU is given twice, no job runs twice, everything ends."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.drawn import scaled
from tests.service.scene import Scene

from stretto.service.state import events as happened
from stretto.service.state.reducer import apply
from stretto.service.state.state import State

STATUSES = st.sampled_from([0, 0, 1, 143, 137])


class Life_of_a_cluster(RuleBasedStateMachine):  # noqa: N801
    def __init__(self) -> None:
        super().__init__()
        self.scene = Scene(nodes=2, gpus=3)
        self.count = 0
        self.may_run_on: list[set[str] | None] = [None, None]  # while a node is closed

    def on(self, node: int) -> set[str]:
        return {name for name, worker in self.scene.running.items() if worker.node == node}

    def job(self, draw: int) -> str:
        return str(draw % self.count + 1)

    @rule(elastic=st.booleans(), gpus=st.integers(1, 4), waits=st.booleans())
    def submit(self, elastic: bool, gpus: int, waits: bool) -> None:
        if self.count < 5:
            first = [{"job": str(self.count)}] if waits and self.count else []
            self.count += 1
            sizes = (1, 6) if elastic else None
            self.scene.submit(str(self.count), gpus, sizes, restart={"max": 1}, depends_on=first)

    @precondition(lambda self: self.count)
    @rule(draw=st.integers(0, 99), masks=st.tuples(st.integers(0, 7), st.integers(0, 7)))
    def decide(self, draw: int, masks: tuple[int, int]) -> None:
        """Give a job what of these GPUs nobody else is to have."""
        name = self.job(draw)
        record = self.scene.state.jobs[name]
        placement = self.scene.state.placement
        assert placement is not None
        others = placement.changed({record.job.id: None})
        free = {f"n{node}": mask & ~int(others.busy[node]) for node, mask in enumerate(masks)}
        wanted = {node: mask for node, mask in free.items() if mask}
        if not record.has_ended:
            self.scene.give(**{f"_{name}": wanted or None})

    @precondition(lambda self: self.count)
    @rule(draw=st.integers(0, 99))
    def cancel(self, draw: int) -> None:
        self.scene.tell(happened.Cancelled(self.job(draw)))

    @precondition(lambda self: self.count)
    @rule(draw=st.integers(0, 99), held=st.booleans())
    def hold(self, draw: int, held: bool) -> None:
        self.scene.tell(happened.Held(self.job(draw), held))

    @rule(node=st.sampled_from(["n0", "n1"]), up=st.booleans())
    def node_comes_or_goes(self, node: str, up: bool) -> None:
        if int(node[1:]) in self.scene.silent:
            return
        self.scene.tell(happened.NodeSeen(node, "a100", 3) if up else happened.NodeLost(node))

    @rule(node=st.sampled_from([0, 1]))
    def node_is_silent(self, node: int) -> None:
        self.scene.silence(node)

    @precondition(lambda self: self.scene.silent)
    @rule(draw=st.integers(0, 1))
    def node_is_given_up(self, draw: int) -> None:
        self.scene.bury(sorted(self.scene.silent)[draw % len(self.scene.silent)])

    @precondition(lambda self: self.scene.silent)
    @rule(draw=st.integers(0, 1))
    def node_answers_again(self, draw: int) -> None:
        self.scene.answer(sorted(self.scene.silent)[draw % len(self.scene.silent)])

    @rule(node=st.sampled_from([0, 1]), closed=st.booleans(), drain=st.booleans())
    def node_is_closed_or_opened(self, node: int, closed: bool, drain: bool) -> None:
        self.scene.tell(happened.NodeCordoned(f"n{node}", closed, drain))
        self.may_run_on[node] = self.on(node) if closed else None

    @precondition(lambda self: self.scene.running)
    @rule(draw=st.integers(0, 99), status=STATUSES)
    def a_worker_ends(self, draw: int, status: int) -> None:
        names = sorted(self.scene.running)
        self.scene.end(names[draw % len(names)], status)

    @precondition(lambda self: self.scene.running)
    @rule(draw=st.integers(0, 99))
    def a_worker_is_ready(self, draw: int) -> None:
        names = sorted(self.scene.running)
        self.scene.ready(names[draw % len(names)])

    @precondition(lambda self: self.count)
    @rule(draw=st.integers(0, 99))
    def a_generation_is_joined(self, draw: int) -> None:
        self.scene.join(self.job(draw))

    @rule(seconds=st.sampled_from([0.0, 5.0, 40.0, 100.0]))
    def time_passes(self, seconds: float) -> None:
        self.scene.now_s += seconds

    @rule()
    def reconcile(self) -> None:
        self.scene.reconcile()

    @invariant()
    def no_gpu_has_two_workers(self) -> None:
        seen: set[tuple[int, int]] = set()
        for worker in self.scene.running.values():
            for gpu in worker.gpus:
                assert (worker.node, gpu) not in seen
                seen.add((worker.node, gpu))

    @invariant()
    def nobody_begins_on_a_closed_node(self) -> None:
        for node, before in enumerate(self.may_run_on):
            assert before is None or self.on(node) <= before

    @invariant()
    def no_job_runs_in_two_attempts_but_where_nobody_can_tell_or_it_was_told_to_end(self) -> None:
        scene = self.scene
        attempts: dict[str, set[int]] = {}
        for name, worker in scene.running.items():
            if worker.node not in scene.silent and name not in scene.strays() & scene.asked_to_stop:
                attempts.setdefault(worker.job, set()).add(worker.attempt)
        assert all(len(found) == 1 for found in attempts.values())

    @invariant()
    def what_runs_is_in_the_log_but_on_nodes_that_were_given_up(self) -> None:
        scene = self.scene
        for name in scene.strays():
            given_up = scene.state.nodes[scene.running[name].node].dead
            assert given_up or name in scene.asked_to_stop

    @invariant()
    def an_attempt_begins_only_when_nobody_waits_for_one_before(self) -> None:
        for record in self.scene.state.jobs.values():
            assert {worker.attempt for worker in record.alive} <= {record.attempt}

    def teardown(self) -> None:
        """Everybody is cancelled, what was asked to stop ends; nothing is left, and the log says so."""
        scene = self.scene
        for index in range(self.count):
            scene.tell(happened.Cancelled(str(index + 1)))
        for node in sorted(scene.silent):
            scene.answer(node)
        for _ in range(10):
            scene.reconcile()
            assert set(scene.running) <= scene.asked_to_stop
            for name in list(scene.running):
                scene.end(name, 143)
        assert not scene.state.open
        again = State()
        for number, event in enumerate(scene.log, start=1):
            apply(again, event, number, 0.0)
        assert {name: job.state for name, job in again.jobs.items()} == {
            name: job.state for name, job in scene.state.jobs.items()
        }


Life_of_a_cluster.TestCase.settings = settings(max_examples=scaled(60), stateful_step_count=40, deadline=None)
TestWhateverHappens = Life_of_a_cluster.TestCase
