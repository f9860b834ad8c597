"""The emulated cluster: workers are values that follow what an actor was asked to play.

An emulated worker belongs to a job of the log. So each is submitted before it is started, as a service would
do, and its end is written down when it is seen; what a new connection adopts follows from that log.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.conformance.world import World
from tests.service.emulated.stage import MemoryWriter

from stretto.backends.protocol import Backend, StartRefused, WorkerStart, WorkerState
from stretto.clusters import write_cluster
from stretto.jobfile.submission import read_submission
from stretto.model import Cluster, GpuType, cluster_of
from stretto.service.emulated.backend import EmulatedBackend
from stretto.service.emulated.truth import DURATION, SAVING
from stretto.service.eventlog.clock import Clock
from stretto.service.state import events as happened
from stretto.service.state.events import Event
from stretto.service.state.records import WorkerPhase
from stretto.service.state.reducer import apply
from stretto.service.state.state import State
from stretto.sim.settings import SimSettings

# Types for which the catalogue has measured speeds, which a policy asks for before it resizes a training.
CLUSTER = cluster_of("conformance", (GpuType("rtx2080ti", 11.0), 2, 2), (GpuType("t4", 16.0), 1, 2))
RESTART_S, RESIZE_S = 0.3, 0.1
UNLIMITED_S = 1e6

NO_PROCESS = "an emulated worker is no process: it ends as its model says, and runs no command"
NO_NODE = "emulated nodes are values of the service itself, and never down"
IN_PROCESS = "the emulated cluster is a part of the service: nothing lies between them that could fail"
GIVEN = "which GPUs are free is the service's to know; the emulated nodes believe it"
LACKS = {
    "test_exit_statuses_and_signals_come_back_as_they_were": NO_PROCESS,
    "test_a_command_that_cannot_be_run_says_so": NO_PROCESS,
    "test_an_id_is_never_used_again": "ids are the service's, and nobody else can ask an emulated node",
    "test_a_log_is_read_from_an_offset_and_followed_to_its_end": NO_PROCESS,
    "test_a_worker_that_is_killed_from_outside_shows_as_killed": NO_PROCESS,
    "test_a_child_that_outlives_its_parent_keeps_the_gpus_until_it_is_gone": NO_PROCESS,
    "test_two_workers_on_the_same_gpus_are_never_alive_at_once": GIVEN,
    "test_of_a_node_that_dies_nothing_runs_on_and_the_others_go_on": NO_NODE,
    "test_while_nobody_answers_orders_are_refused_and_nothing_is_concluded": IN_PROCESS,
    "test_late_and_lost_replies_change_nothing": IN_PROCESS,
    "test_a_status_of_its_own_ends_a_job_as_failed": NO_PROCESS,
    "test_a_worker_that_breaks_down_is_tried_again_as_its_file_allows": NO_PROCESS,
    "test_who_is_killed_from_outside_goes_on_from_where_it_was": NO_PROCESS,
    "test_a_job_goes_on_elsewhere_when_its_node_dies_and_the_node_is_used_again": NO_NODE,
    "test_a_cluster_that_is_away_for_a_while_loses_nothing": IN_PROCESS,
    "test_jobs_of_a_slow_cluster_that_loses_answers_run_once_each": IN_PROCESS,
    "test_four_kinds_of_real_jobs_share_a_cluster_that_loses_a_node": NO_PROCESS,
    "test_four_kinds_of_real_jobs_share_a_cluster_of_which_a_node_is_drained": NO_PROCESS,
    "test_a_training_grows_shrinks_and_moves_in_place_and_trains_on_each_sample_once": NO_PROCESS,
    "test_a_job_begins_in_a_copy_of_what_it_brought_along_which_goes_with_it": NO_PROCESS,
    "test_an_upload_that_cannot_be_fetched_ends_the_job_with_one_line_that_says_why": NO_PROCESS,
    "test_a_training_that_came_by_upload_trains_on_each_sample_once": NO_PROCESS,
}


@dataclass
class OnALog:
    """A `Backend` whose workers need no service: it writes down what a service would."""

    log_writer: MemoryWriter
    inner: EmulatedBackend

    async def start(self, worker: WorkerStart) -> WorkerState:
        """Submit the job unless that was done, then start."""
        if worker.node not in {node.name for node in await self.inner.nodes()}:
            raise StartRefused(f"worker {worker.id}: no node {worker.node}")
        state = self.log_writer.state
        if worker.job not in state.jobs:
            spec, _ = read_submission(job_of(worker))
            self.log_writer.record(happened.Submitted(worker.job, spec.to_json(), "ada"))
            mask = sum(1 << gpu for gpu in worker.gpus)
            said = {"id": worker.id, "node": worker.node, "mask": mask}
            self.log_writer.record(happened.WorkersWanted(worker.job, 1, (said,)))
            shown = await self.inner.start(worker)
            self.log_writer.record(happened.WorkersRan(worker.job, (worker.id,)))
            return shown
        return await self.inner.start(worker)

    async def workers(self) -> Sequence[WorkerState]:
        """Every worker; ends are written down."""
        shown = await self.inner.workers()
        for one in shown:
            known = self.log_writer.state.jobs[one.job].workers[one.id]
            if one.phase == "ended" and known.life is not WorkerPhase.ENDED:
                self.log_writer.record(happened.WorkerEnded(one.job, one.id, one.status or 0))
        return shown

    async def hand_over(self, nodes: Sequence[str], to: str | None) -> None:
        """Have it done, and write it down."""
        await self.inner.hand_over(nodes, to)
        self.log_writer.record(happened.NodesHandedOver(to or "", tuple(nodes), to))

    def __getattr__(self, name: str) -> object:
        """All else is the emulated backend's own."""
        return getattr(self.inner, name)


def job_of(worker: WorkerStart) -> str:
    """A job file for what an actor was to play, in seconds of the emulated clock."""
    manner, arguments = worker.command[5], [float(one) for one in worker.command[6:]]
    lasts_s = arguments[0] if manner == "sleep" else UNLIMITED_S
    saving_s = arguments[0] if manner == "polite" else UNLIMITED_S if manner == "stubborn" else 0.0
    labels = f"{DURATION}: '{max(lasts_s, 0.01):g}'" + (f", {SAVING}: '{saving_s:g}'" if saving_s else "")
    gpus = len(worker.gpus)
    return (
        f"run: x\nresources: {{accelerators: {gpus}, gpus_per_worker: {gpus}}}\nlabels: {{{labels}}}\n"
        "checkpoint: {every: 1m}\n"
    )


@dataclass
class EmulatedWorld:
    """One log, and a service over a cluster file."""

    folder: Path
    cluster: Cluster = CLUSTER
    name: str = "emulated"
    lacks: Mapping[str, str] = field(default_factory=lambda: LACKS)
    patience_s: float = 120.0
    program: Sequence[str] = ("-m", "stretto.cli.app")
    serve: Sequence[str] = ()
    log: list[tuple[float, Event]] = field(default_factory=list)
    clock: Clock = field(default_factory=Clock)

    async def open(self) -> Backend:
        """A new emulated backend that takes up what the log says."""
        state = State()
        for number, (at_s, event) in enumerate(self.log, start=1):
            apply(state, event, number, at_s)
        log_writer = MemoryWriter(state, self.clock, log=self.log)
        if not self.log:
            log_writer.record(happened.Began(1e9), happened.Configured("fifo"))
        settings = SimSettings(restart_s=RESTART_S, start_s=RESTART_S)
        inner = EmulatedBackend(self.cluster, log_writer, settings).open()  # type: ignore[arg-type]
        if not state.nodes:
            nodes = self.cluster.nodes
            log_writer.record(*(happened.NodeSeen(str(one.id), one.gpu_type, one.gpus) for one in nodes))
        return OnALog(log_writer, inner)  # type: ignore[return-value]

    def nodes(self) -> Sequence[str]:
        """Those of the cluster file."""
        return tuple(str(node.id) for node in self.cluster.nodes)

    async def kill_node(self, name: str) -> None:
        """Emulated nodes are never down."""
        raise NotImplementedError(NO_NODE)

    async def return_node(self, name: str) -> None:
        """Emulated nodes are never down."""
        raise NotImplementedError(NO_NODE)

    @asynccontextmanager
    async def unreachable(self) -> AsyncIterator[None]:
        """Nothing could."""
        raise NotImplementedError(IN_PROCESS)
        yield

    @asynccontextmanager
    async def slow(self) -> AsyncIterator[None]:
        """Nothing is."""
        raise NotImplementedError(IN_PROCESS)
        yield

    async def left(self) -> Sequence[str]:
        """Values only."""
        return ()

    def forget_workers(self) -> None:
        """Each service has an emulated cluster of its own."""

    async def close(self) -> None:
        """There is nothing to end."""


def begin(folder: Path) -> World:
    """Three nodes of two GPUs each."""
    path = folder / "cluster.yaml"
    write_cluster(CLUSTER, path)
    times = {"restart_s": RESTART_S, "resize_s": RESIZE_S, "start_s": RESTART_S}
    settings = [part for key, value in times.items() for part in ("--set", f"sim.{key}={value}")]
    return EmulatedWorld(folder, serve=("--backend", "emulated", "--cluster", str(path), *settings))
