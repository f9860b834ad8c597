"""What is asked of the backend: each order beside the loops, once, and again where it was not taken."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from stretto.backends.protocol import (
    Backend,
    BackendUnreachable,
    IdUsed,
    NoSuchWorker,
    StartRefused,
    WorkerState,
)
from stretto.service.eventlog import LeadLost
from stretto.service.eventlog.writer import LogWriter
from stretto.service.leadership import Leadership
from stretto.service.reconcile.diff import UNKNOWN, VANISHED
from stretto.service.reconcile.reconciler import Command, Start, Stop
from stretto.service.reconcile.worker_cache import WorkerCache
from stretto.service.reconcile.worker_env import WorkerContext, start_of
from stretto.service.state.events import WorkerEnded
from stretto.service.state.records import JobRecord, WorkerPhase

REFUSED = 126  # the status of a worker that a node refused to start, as a shell says "cannot execute"

log = logging.getLogger(__name__)

Given = TypeVar("Given")


@dataclass
class Dispatcher:
    """Starts, stops and forgets workers. again: is told of a job whose command was not taken."""

    log_writer: LogWriter
    backend: Backend
    context: WorkerContext
    seen: WorkerCache
    again: Callable[[str], None]
    leadership: Leadership | None = None  # None: nobody else can lead
    start_errors: dict[str, str] = field(default_factory=dict)  # job → why a start is still being tried
    tasks: set["asyncio.Task[None]"] = field(default_factory=set)  # under way
    _given: set[tuple[str, str]] = field(default_factory=set)  # commands under way, or taken
    _ended: dict[str, dict[str, None]] = field(default_factory=dict)  # by node, workers that it may forget

    def dispatch_all(self, commands: Iterable[tuple[JobRecord, Command]]) -> None:
        """Carry out commands in their order."""
        for record, command in commands:
            self.dispatch(record, command)

    def dispatch(self, record: JobRecord, command: Command) -> None:
        """Carry out a command beside the loop, unless the same one is under way."""
        key = (type(command).__name__, command.worker.id)
        if key in self._given or (isinstance(command, Start) and command.worker.id in self.seen.workers):
            return
        self._given.add(key)
        self._beside(self._carry_out(record, command, key))

    async def _carry_out(self, record: JobRecord, command: Command, key: tuple[str, str]) -> None:
        worker = command.worker
        try:
            if isinstance(command, Start):
                start = start_of(self.log_writer.state, record, worker, self.context)
                self.seen.see(await self._commanded(lambda: self.backend.start(start)))
                self.start_errors.pop(record.id, None)
            else:
                grace_s = command.grace_s
                await self._commanded(lambda: self.backend.stop(worker.id, grace_s))
        except LeadLost:
            return  # the service is ending, and another one takes care of the worker
        except BackendUnreachable as error:
            if isinstance(command, Start):
                self.start_errors[record.id] = str(error)
            self._repeat(record, key)
        except IdUsed:  # in a time that the log has lost
            await self.log_writer.record(WorkerEnded(record.id, worker.id, VANISHED, UNKNOWN))
        except StartRefused as refused:
            await self.log_writer.record(WorkerEnded(record.id, worker.id, REFUSED, str(refused)))
        except NoSuchWorker:
            # Its start was recorded and never reached the node, or the node has lost it: it does not run.
            if isinstance(command, Stop) and ("Start", worker.id) not in self._given:
                await self.log_writer.record(WorkerEnded(record.id, worker.id, VANISHED, UNKNOWN))
            else:
                self._repeat(record, key)
        except Exception:  # whatever it is: a worker must not be left without its command
            log.exception("%s of worker %s failed; it is tried again", key[0], worker.id)
            self._repeat(record, key)

    def _repeat(self, record: JobRecord, key: tuple[str, str]) -> None:
        """Have the job asked again soon, which gives the command again if it is still wanted."""
        self._given.discard(key)
        self.again(record.id)

    def stop_strays(self, strays: Iterable[tuple[WorkerState, float]]) -> None:
        """Stop workers that no job wants, each within so many seconds."""
        for stray, grace_s in strays:
            key = ("Stop", stray.id)
            if key not in self._given:
                self._given.add(key)
                log.warning(
                    "worker %s of node %s is not wanted: it has %g s to end", stray.id, stray.node, grace_s
                )
                self._beside(self._stop(stray, grace_s, key))

    async def _stop(self, worker: WorkerState, grace_s: float, key: tuple[str, str]) -> None:
        try:
            await self._commanded(lambda: self.backend.stop(worker.id, grace_s))
        except LeadLost:
            return
        except (BackendUnreachable, NoSuchWorker):
            self._given.discard(key)
        except Exception:
            log.exception("stop of worker %s failed; it is tried again", worker.id)
            self._given.discard(key)

    def forget_ended(self, workers: Sequence[WorkerState]) -> None:
        """Workers whose end is in the log need no longer be listed. No node waits for another's answer."""
        state = self.log_writer.state
        for listed in workers:
            record = state.jobs.get(listed.id.split(".")[0])
            worker = record.workers.get(listed.id) if record is not None else None
            if listed.phase == "ended" and (worker is None or worker.life is WorkerPhase.ENDED):
                self._ended.setdefault(listed.node, {})[listed.id] = None
        for node, names in self._ended.items():
            if names and ("Forget", node) not in self._given:
                self._given.add(("Forget", node))
                self._beside(self._forget(node, names))

    async def _forget(self, node: str, names: dict[str, None]) -> None:
        """Have a node forget these, one after the other; a node that does not answer is asked again later."""
        try:
            while names:
                name = next(iter(names))
                with contextlib.suppress(NoSuchWorker):
                    await self._commanded(partial(self.backend.forget, name))
                del names[name]
                self.seen.unsee(name)
                self._given -= {("Start", name), ("Stop", name)}
        except (BackendUnreachable, LeadLost):
            pass
        finally:
            self._given.discard(("Forget", node))

    async def _commanded(self, give: Callable[[], Awaitable[Given]]) -> Given:
        """What a command gives. Raises LeadLost where another service leads, before anything is done."""
        if self.leadership is None:
            return await give()
        return await self.leadership.command(give)

    def _beside(self, story: Coroutine[Any, Any, None]) -> None:
        """Let something go on beside the loops."""
        task = asyncio.create_task(story)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
