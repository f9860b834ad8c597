"""Looks at Slurm again and again, often while something is about to change.

Nothing is concluded from silence: while the controller does not answer, all stays as it was last seen.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from stretto.agent import run_directory, supervisor
from stretto.backends.node_topology import NOWHERE, NodeTopology
from stretto.backends.protocol import BackendUnreachable, LongPoll, NodeState
from stretto.backends.slurm import nodes as slurm_nodes
from stretto.backends.slurm import worker_jobs
from stretto.backends.slurm.client import SlurmClient
from stretto.backends.slurm.nodes import NodeResources, held_by_others
from stretto.backends.slurm.options import SlurmOptions
from stretto.backends.slurm.parsers import SlurmJob, SlurmNode, by_comment
from stretto.backends.slurm.worker_jobs import (
    MISSED,
    WorkerJob,
    WorkerNotes,
    chosen_job,
    ended_state,
    ending_of,
    going_state,
    is_over,
    read_notes,
    worker_job_at,
)

TICK_S, SOON_TICK_S = 0.3, 0.1  # between two looks at files alone, which cost Slurm nothing; chosen
LARGEST_PART = 0.2  # of the time, that looks may take where Slurm is slow to answer; chosen
TOPOLOGY_S = 60.0  # between two looks at the network, which an admin changes once in a while; chosen
NODES_S = 2.0  # between two looks at nodes while something is about to change; chosen
SILENT_PAUSE_S = 1.0  # before a controller that did not answer is asked again; chosen
AGAIN_S = 3.0  # before a supervisor that shows no sign of stopping is told again; chosen
PATIENT_S = 60.0  # with a node that does not answer Slurm, while Slurm goes on using it; chosen
PRESS_S = 15.0  # after its grace, until Slurm itself is to end a worker job; chosen

log = logging.getLogger(__name__)


class Poller:
    """What was last seen of nodes and worker jobs. `served` and `nodes` are replaced, never changed."""

    def __init__(
        self,
        asking: SlurmClient,
        options: SlurmOptions,
        service: str,
        workers: dict[str, WorkerJob],
        runs: Path,
    ) -> None:
        self.asking, self.options, self.service, self.known = asking, options, service, workers
        self.runs = runs
        self.leads: Callable[[], bool] = lambda: True  # whether no later service has commanded here
        self.reserved_for_us: Callable[[str], bool] = lambda node: False  # while it is on loan
        self.partitions: tuple[str, ...] = options.partitions
        self.default_partition = ""
        self.all_nodes: Mapping[str, SlurmNode] = {}
        self.served: Mapping[str, SlurmNode] = {}
        self.nodes: list[NodeState] = []
        self.where: Mapping[str, NodeTopology] = {}  # by node, as far as Slurm knows
        self.where_s = float("-inf")  # monotonic; when that was last asked for
        self.silent_since_s: dict[str, float] = {}  # monotonic; by node that does not answer Slurm
        self.others: Mapping[str, NodeResources] = {}  # what other people hold, by node
        self.seen_others: Mapping[str, NodeResources] = {}  # the same as last seen, be it believed or not
        self.poll = LongPoll()
        self.looking = asyncio.Lock()
        self.wake = asyncio.Event()
        self.silence = ""  # why the controller counts as silent; "" = it answers
        self.nodes_s = float("-inf")  # monotonic; when nodes were last asked for
        self.listed_s, self.took_s = float("-inf"), 0.0  # when Slurm was last asked, and for how long

    def hurry(self) -> None:
        """Look again at once."""
        self.wake.set()

    def require_answers(self) -> None:
        """Raise BackendUnreachable while the controller is known to be silent: orders would pile up there."""
        if self.silence:
            raise BackendUnreachable(self.silence)

    # ── the loop ──────────────────────────────────────────────────────────────────────────────────

    async def follow(self) -> None:
        """Look for ever, until cancelled."""
        while True:
            try:
                await self.look(due_only=True)
                wait_s = TICK_S if self.known else self.options.quiet_s
            except BackendUnreachable:
                wait_s = SILENT_PAUSE_S
            except OSError as failure:  # such as a disk that is full
                log.warning("%s", failure)
                wait_s = SILENT_PAUSE_S
            if self._about_to_change() and not self.silence:
                wait_s = SOON_TICK_S
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self.wake.wait()

    def _about_to_change(self) -> bool:
        now_s = time.monotonic()
        return any(one.is_about_to_change(now_s) for one in self.known.values())

    async def look(self, due_only: bool = False) -> None:
        """Read files, ask Slurm, and take in both. Raises BackendUnreachable.

        due_only: ask Slurm only where its time has come; files are cheap, and tell that a worker ended.
        """
        async with self.looking:
            hurried = self.wake.is_set()
            self.wake.clear()
            news = await self._read_files()
            now_s = time.monotonic()
            soon = self._about_to_change()
            every_s = self.options.soon_s if soon else self.options.quiet_s
            due = now_s - self.listed_s >= max(every_s * 0.9, self.took_s / LARGEST_PART)
            if due_only and not (due or news or hurried or self.silence):
                return
            try:
                every_s = NODES_S if soon else self.options.quiet_s
                nodes = None
                if not due_only or now_s - self.nodes_s >= every_s or self.silence:
                    nodes = [self._as_ours(node) for node in await self.asking.nodes()]
                    self.nodes_s = now_s
                    if now_s - self.where_s >= TOPOLOGY_S:
                        self.where, self.where_s = await self.asking.topology(), now_s
                # After the nodes: whatever of ours they show in use is then in this listing.
                jobs = await self.asking.jobs()
            except BackendUnreachable as silence:
                self.silence = str(silence)
                raise
            self.silence, self.listed_s, self.took_s = "", now_s, time.monotonic() - now_s
            held_before = self._held()
            if nodes is not None:
                nodes = self.with_patience(nodes, now_s)
                self.all_nodes = {node.name: node for node in nodes}
                self.served = {node.name: node for node in nodes if slurm_nodes.serves(node, self.partitions)}
            changed = await self._take_in(jobs.jobs, jobs.asked_s)
            changed |= nodes is not None and self._take_in_nodes(held_before)
            if changed:
                self.poll.notify()
        if await asyncio.to_thread(self.leads):
            await self._act(jobs.jobs)

    # ── files ─────────────────────────────────────────────────────────────────────────────────────

    async def _read_files(self) -> bool:
        """What supervisors have written; whether one has written how its worker ended."""
        going = [worker for worker in self.known.values() if not worker.ended]
        ended = began = False
        for worker, notes in await asyncio.to_thread(_read_all, going):
            if worker.ended:
                continue  # meanwhile, and whoever did that has read more
            ended |= notes.ending is not None and worker.notes.ending is None
            worker.notes = notes
            if worker.state.phase == "starting" and worker.listed and notes.running is not None:
                worker.state, began = going_state(worker, True), True
        if began:
            self.poll.notify()
        return ended

    # ── worker jobs ────────────────────────────────────────────────────────────────────────────────────

    async def _take_in(self, jobs: list[SlurmJob], asked_s: float) -> bool:
        """Update all worker jobs from a listing that was asked for at a time; whether any differs."""
        ours: dict[str, list[SlurmJob]] = {}
        for worker_id, job in by_comment(jobs, worker_jobs.comment_of(self.service, "")):
            ours.setdefault(worker_id, []).append(job)
        numbers = {job.id: job for job in jobs}
        changed = False
        for worker in list(self.known.values()):
            if not worker.ended:
                before = worker.listed, worker.state
                # By its number too: sites rewrite comments, and so may anybody with `scontrol update`.
                number = numbers.get(worker.notes.by or worker.job_id)
                named = ours.get(worker.id, [])
                try:
                    await self._update(
                        worker, named if number is None or number in named else [*named, number], asked_s
                    )
                except (OSError, ValueError) as failure:  # of one: the others must not suffer from it
                    log.warning("worker %s: %s", worker.id, failure)
                changed |= before != (worker.listed, worker.state)
        return changed

    async def _update(self, worker: WorkerJob, jobs: list[SlurmJob], asked_s: float) -> None:
        now_s = time.monotonic()
        job = chosen_job(worker, jobs)
        if job is not None:
            worker.job, worker.missed = job, 0
            if worker.job_id != job.id:
                worker.job_id = job.id
                if not worker.notes.submitted and not worker.submitting:  # the answer was lost
                    await asyncio.to_thread(worker_jobs.note_job, worker.run, job.id)
        elif worker.job_id and asked_s > worker.answered_s:
            worker.missed += 1
        if not worker.job_id:
            return
        waiting = worker.job is not None and worker.job.is_waiting
        worker.waits_since_s = (worker.waits_since_s or now_s) if waiting else None
        if not is_over(worker):
            worker.over_since_s = None
            node = self.all_nodes.get(worker.state.node)
            up = node is not None and not node.states & (slurm_nodes.SILENT | slurm_nodes.DEAD)
            worker.state = going_state(worker, up)
            return
        if (
            worker.missed == MISSED
            and (unlisted := await self.asking.job(worker.job_id))
            and not unlisted.is_over
        ):
            worker.job, worker.missed = unlisted, 0  # listings lack it, and yet it runs
            return
        if worker.over_since_s is None:
            worker.over_since_s = now_s
        if worker.notes.ending is None:
            await asyncio.to_thread(worker_jobs.refresh, worker.run)
            worker.notes = await asyncio.to_thread(read_notes, worker.run)
            if job is not None and chosen_job(worker, jobs) != job:
                return  # it came second: the one that began is looked at next time
            if worker.notes.ending is None and worker.missed == 0:
                worker.job = await self.asking.job(worker.job_id) or worker.job
        ending = ending_of(worker, now_s)
        if ending is not None:
            await self._settle(worker, ending)

    async def _settle(self, one: WorkerJob, ending: dict[str, object]) -> None:
        """Nothing runs any more: write down how it ended, for services to come."""
        with suppress(OSError):  # then the next service finds out the same
            await asyncio.to_thread((one.run / supervisor.SECRETS).unlink, missing_ok=True)
            path = one.run / "ended.json"
            await asyncio.to_thread(supervisor.write_durably, path, {**ending, "settled": True})
        one.state = ended_state(one, ending)

    async def take(self, worker: WorkerJob) -> bool:
        """Keep a worker job from beginning; False where it has begun. Raises OSError.

        One that is taken although Slurm has not begun it was taken by a service that died before it said so.
        """
        if await asyncio.to_thread(worker_jobs.take, worker.run):
            return True
        waits = worker.job is not None and worker.job.is_waiting
        return waits and worker.notes.taken and not worker.notes.by

    async def withdraw(self, worker: WorkerJob, why: str) -> None:
        """End a worker job that we took before it began."""
        await asyncio.to_thread(worker_jobs.withdraw, worker.run, why)
        worker.notes = await asyncio.to_thread(read_notes, worker.run)
        if worker.notes.ending is not None:
            worker.state = ended_state(worker, worker.notes.ending)
        self.poll.notify()
        self.hurry()
        with suppress(BackendUnreachable):  # then the next look finds it, and tries again
            self.require_answers()
            if worker.job_id:
                await self.asking.cancel(worker.job_id)

    # ── nodes ─────────────────────────────────────────────────────────────────────────────────────

    def _held(self) -> dict[str, NodeResources]:
        held: dict[str, NodeResources] = {}
        for one in self.known.values():
            held[one.state.node] = held.get(one.state.node, NodeResources()) + one.holds
        return held

    def _as_ours(self, node: SlurmNode) -> SlurmNode:
        """A node, which is not shut by a reservation of ours."""
        if self.reserved_for_us(node.name):
            return replace(node, states=node.states - {"RESERVED"})
        return node

    def with_patience(self, nodes: list[SlurmNode], now_s: float) -> list[SlurmNode]:
        """Nodes, of which those that have not answered Slurm for a while only are as they were before.

        A controller that was restarted knows nothing of any node until it has registered anew. So it is with
        a daemon that is restarted: jobs of Slurm go on, and so must ours.
        """
        silent = {node.name for node in nodes if slurm_nodes.is_silent(node)}
        self.silent_since_s = {name: self.silent_since_s.get(name, now_s) for name in silent}
        return [
            before
            if node.name in silent
            and (before := self.all_nodes.get(node.name)) is not None
            and now_s - self.silent_since_s[node.name] < PATIENT_S
            else node
            for node in nodes
        ]

    def _take_in_nodes(self, before: Mapping[str, NodeResources]) -> bool:
        """Update all nodes; whether any differs.

        before: what ours held before this look. A worker that ended meanwhile may still count in what nodes
        show.
        """
        used_by_us = self._held()
        used_by_others = {
            name: held_by_others(
                node, used_by_us.get(name, NodeResources()).or_more(before.get(name, NodeResources()))
            )
            for name, node in self.served.items()
        }
        # What nodes show in use lags behind the end of jobs: a rise counts once it was seen twice.
        self.others = {
            name: resources.or_less(self.seen_others.get(name, resources))
            for name, resources in used_by_others.items()
        }
        self.seen_others = used_by_others
        states = [
            slurm_nodes.state_of(node, self.others[name], self.where.get(name, NOWHERE))
            for name, node in self.served.items()
        ]
        lost = (node for node in self.nodes if node.name not in self.served)
        states += [slurm_nodes.unserved(node, self.all_nodes.get(node.name)) for node in lost]
        states.sort(key=lambda node: node.name)
        changed = states != self.nodes
        self.nodes = states
        return changed

    # ── what follows from a look ──────────────────────────────────────────────────────────────────

    async def _act(self, jobs: list[SlurmJob]) -> None:
        """Cancel what should not be there, withdraw what waits for too long, repeat what was not heard."""
        now_s = time.monotonic()
        for worker_id, job in by_comment(jobs, worker_jobs.comment_of(self.service, "")):
            if job.is_over or "COMPLETING" in job.states:
                continue
            worker = self.known.get(worker_id) or await self.found(worker_id)
            if worker is None or worker.ended:
                await self.asking.cancel(job.id)
                continue
            second = worker.job_id not in (0, job.id) and not worker.submitting
            # Asked anew: it may have begun just now, and then it is the other one that came second.
            if second and await asyncio.to_thread(worker_jobs.taken_by, worker.run) != job.id:
                await self.asking.cancel(job.id)
        for worker in list(self.known.values()):
            if worker.ended:
                continue
            if worker.waits_since_s is not None and now_s - worker.waits_since_s >= self.options.pending_s:
                await self._withdraw_waiting(worker)
            elif worker.notes.stop_s is not None and worker.notes.running is not None:
                await self._press(worker, now_s)

    async def found(self, worker_id: str) -> WorkerJob | None:
        """A worker job of our service that another connection has written down; None where none has."""
        run = self.runs / worker_id
        if not await asyncio.to_thread((run / "start.json").exists):
            return None
        try:
            self.known[worker_id] = await asyncio.to_thread(worker_job_at, run)
        except run_directory.Damaged:  # nobody can say any more what it is
            return None
        self.hurry()
        return self.known[worker_id]

    async def _withdraw_waiting(self, one: WorkerJob) -> None:
        reason = one.job.reason if one.job is not None else ""
        if not one.submitting and await self.take(one):
            said = f": {reason}" if reason else ""
            await self.withdraw(one, f"Slurm kept it waiting for {self.options.pending_s:g} s{said}")

    async def _press(self, worker: WorkerJob, now_s: float) -> None:
        """Tell a supervisor again that shows no sign of stopping; past the grace, have Slurm end it."""
        running, grace_s = worker.notes.running or {}, worker.notes.stop_s or 0.0
        if not running.get("stopping") and not running.get("exit") and now_s - worker.told_s >= AGAIN_S:
            worker.told_s = now_s
            await self.asking.signal(worker.job_id, "TERM")
        elif now_s - max(worker.told_s, worker.pressed_s) >= grace_s + PRESS_S:
            worker.pressed_s = now_s
            await self.asking.cancel(worker.job_id)


def _read_all(going: list[WorkerJob]) -> list[tuple[WorkerJob, WorkerNotes]]:
    found = []
    for one in going:
        with suppress(OSError, ValueError):  # of one: the others must not suffer from it
            found.append((one, read_notes(one.run)))
    return found
