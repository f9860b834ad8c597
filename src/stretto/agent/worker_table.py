"""The workers of one node: started, watched and listed from what their run directories say."""

import os
import select
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stretto.agent import container, containment, run_directory, supervisor, unix_users
from stretto.agent.gpu_use import SAMPLE_EVERY_S, GpuUse, device_of_place
from stretto.agent.log_bounds import LogBound, attempts_of
from stretto.agent.node import Devices, Node, close_all, hold_to_ourselves
from stretto.agent.requests import Refused

WATCH_S = 0.5  # the longest that a change goes unnoticed of which no process tells us
WATCH_LOGS_S = 0.5  # between looks at how much was written; chosen: a fast disk takes 1 GB meanwhile
LOOK_FOR_OTHERS_S = 2.0  # between looks at who else has GPUs; chosen
ACCOUNT_MISSING = "this agent runs workers as other users, and the request names none"
ACCOUNT_UNUSED = "this agent runs no workers as other users: it must be started with --run-as"
HURRY_S = 0.02  # while something is about to happen


@dataclass
class Worker:
    """One run directory, and what was last read from it."""

    run: Path
    started: dict[str, Any]  # start.json
    view: dict[str, Any]  # what is shown of it
    handle: int | None = None  # pidfd of the supervisor, which becomes readable when it ends
    locks: list[int] = field(default_factory=list)  # files that hold its GPUs, where this agent started it
    killed: bool = False  # what was left after its supervisor's death has been looked for, and killed, before
    start_damage: str = ""  # what is wrong with start.json; "" for nothing
    damage: str = ""  # what is wrong with any of its files

    @property
    def ended(self) -> bool:
        """Whether nothing of it runs any more."""
        return bool(self.view["phase"] == "ended")


class WorkerTable:
    """Every worker under one state directory. Safe to use from several threads.

    apart, environ: as in `spawn_supervisor`. adopts: orphans of its supervisors come to this process. groups:
    whether each run gets a control group, where one can be made (`containing`).
    """

    def __init__(
        self,
        state: Path,
        node: Node,
        instance: str,
        apart: bool = False,
        environ: Mapping[str, str] | None = None,
        adopts: bool = False,
        groups: bool = False,
        devices: Devices | None = None,
    ) -> None:
        self.runs, self.forgotten = state / "runs", state / "forgotten"
        self.node = node
        self.instance = instance  # names this life of the agent, in which `version` counts
        self.apart, self.environ, self.adopts, self.groups = apart, environ, adopts, groups
        self.supervisors: dict[int, int] = {}  # children of ours: process id, and when it started in ticks
        self.devices = devices or Devices(node.keys)
        self.bound = LogBound(node.max_log_bytes)
        self.lender_file = state / "lender.json"
        self.lender = lender_in(self.lender_file)  # whose node this is now; "": training's
        self.older: dict[str, list[Path]] = {}  # by job with workers here, logs of those that are forgotten
        self.others: frozenset[int] = frozenset()  # devices that others have, as last seen
        self.version = 1
        self.closing = False
        self.lock = threading.Condition()
        self.known = {run.name: worker_in(run) for run in run_directory.every(self.runs)}
        self.wake, self.woken = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.look()
        self.watcher = threading.Thread(target=self.watch, name="watch", daemon=True)
        self.watcher.start()
        self.use = GpuUse(self.devices.keys, self.devices.driver) if node.keys else None
        if node.keys:
            self.look_for_others()
            threading.Thread(target=self.watch_others, name="others", daemon=True).start()
            threading.Thread(target=self.watch_use, name="use", daemon=True).start()
        if node.max_log_bytes:
            threading.Thread(target=self.watch_logs, name="logs", daemon=True).start()

    def start(
        self,
        worker_id: str,
        start: dict[str, Any],
        env: dict[str, str] | None = None,
        guards: Sequence[tuple[int, int]] = (),
    ) -> dict[str, Any]:
        """Start a worker, or show it if that was done before; raises Refused.

        env: what shows it its GPUs, where the node does not know. guards: see `supervisor`. Of secrets the
        names are written down; the values go from here to its supervisor, and stay with that.
        """
        secrets: dict[str, str] = start.get("secrets", {})
        if secrets:
            start = {**start, "secrets": sorted(secrets)}
        with self.lock:
            if worker := self.known.get(worker_id):
                if not worker.start_damage and run_directory.asked_for(worker.started) != start:
                    raise Refused(409, f"worker {worker_id} was started with another request")
                return self.shown(worker)
            if self.lender:
                raise Refused(423, f"node {self.node.name} is with its lender {self.lender}")
            if (self.forgotten / worker_id).exists():
                raise Refused(410, f"worker {worker_id} has ended and was forgotten; ids are not used twice")
            for index in start["gpus"]:
                if user := self.user_of_gpu(index):
                    raise Refused(423, f"GPU {index} of {self.node.name} is in use by {user}")
            if self.node.run_as != ("account" in start):
                raise Refused(400, ACCOUNT_MISSING if self.node.run_as else ACCOUNT_UNUSED)
            devices, locks = self.take_devices(start["gpus"])
            env = self.node.environment(devices) if env is None else env
            group = containment.make_group() if self.groups else ""
            more: dict[str, Any] = {"guards": list(guards), "group": group, "devices": devices}
            if image := start.get("image"):
                more[supervisor.CONTAINER] = {"image": image, "by": container.APPTAINER}
            try:
                run = run_directory.prepare(self.runs, worker_id, {**start, **more}, env)
            except unix_users.NotOwned as failure:
                containment.remove_group(group)
                close_all(locks)
                raise Refused(400, f"worker {worker_id}: {failure}") from failure
            except OSError as failure:
                containment.remove_group(group)
                close_all(locks)
                raise Refused(507, f"worker {worker_id} cannot be written down: {failure}") from failure
            worker = self.known[worker_id] = worker_in(run)
            worker.locks = locks  # inherited by the supervisor, and kept here for what may outlive it
            try:
                pid = run_directory.spawn_supervisor(run, self.environ, self.apart, secrets)
                if not self.apart and (process := supervisor.process_at(pid)):
                    self.supervisors[pid] = process.ticks
                hold_to_ourselves(locks)
                worker.handle = None if self.apart else os.pidfd_open(pid)
            except ProcessLookupError:
                pass  # it has ended already, and was waited for
            except OSError as failure:
                (run / "keeper.log").write_text(
                    f"no supervisor could be started: {failure}\n", encoding="utf-8"
                )
            self.look_at(worker)
            self.hurry()
            return self.shown(worker)

    def hand_over(self, to: str) -> dict[str, Any]:
        """Give this node to a lender, or with "" back to training; raises Refused while a worker lives here.

        It is written down first: an agent that begins anew knows whose node it is on.
        """
        with self.lock:
            living = [worker.run.name for worker in self.known.values() if not worker.ended]
            if to and living:
                raise Refused(423, f"node {self.node.name} cannot go to {to}: {living[0]} still runs there")
            try:
                supervisor.write_durably(self.lender_file, {"lender": to})
            except OSError as failure:
                raise Refused(507, f"whose node this is cannot be written down: {failure}") from failure
            self.lender = to
            return {"lender": to}

    def take_devices(self, gpus: list[int]) -> tuple[list[int], list[int]]:
        """The devices that a worker with these GPUs gets, and files that hold their locks; raises Refused."""
        if not self.node.keys:
            return gpus, []
        taken = self.devices.take(gpus, self.devices_of_ours())
        if taken is None:
            raise Refused(423, f"others use too many GPUs of {self.node.name} for {len(gpus)} more")
        return taken

    def devices_of_ours(self) -> set[int]:
        """The devices that workers of ours have."""
        going = (each for each in self.known.values() if not each.ended)
        return {index for each in going for index in devices_of(each.started)}

    @property
    def all_ended(self) -> bool:
        """Whether no worker lives."""
        with self.lock:
            return all(each.ended for each in self.known.values())

    def user_of_gpu(self, gpu: int) -> str | None:
        """The worker that has a process on a GPU, if any."""
        going = (each for each in self.known.values() if not each.ended)
        return next((each.run.name for each in going if gpu in each.started["gpus"]), None)

    def order(self, worker_id: str, order: dict[str, Any]) -> dict[str, Any]:
        """Hand an order to a worker's supervisor, if there still is one; raises Refused."""
        with self.lock:
            worker = self.worker(worker_id)
            if not worker.ended:
                run_directory.give_order(worker.run, order)
                self.hurry()
            return self.shown(worker)

    def forget(self, worker_id: str) -> dict[str, Any]:
        """List an ended worker no more; raises Refused."""
        copies: list[Path] = []
        with self.lock:
            if worker := self.known.get(worker_id):
                if not worker.ended:
                    raise Refused(409, f"worker {worker_id} still runs")
                try:
                    worker.run.rename(self.forgotten / worker_id)
                except FileNotFoundError:  # somebody has removed it; its id stays used
                    (self.forgotten / worker_id).mkdir(mode=0o700, exist_ok=True)
                del self.known[worker_id]
                self.older.pop(worker_id.partition(".")[0], None)
                copies = run_directory.put_copies_away(self.runs, worker_id)
                self.changed()
            elif not (self.forgotten / worker_id).exists():
                raise Refused(404, f"no worker {worker_id}")
            forgotten = {"instance": self.instance, "version": self.version}
        run_directory.delete_copies(copies)
        return forgotten

    def delete_logs(self, job: str) -> int:
        """Remove all that is left of a job's forgotten workers; how many."""
        of_job = (run for run in run_directory.every(self.forgotten) if run.name.startswith(f"{job}."))
        gone = [run for run in of_job if run_directory.read_start(run)[0]["job"] == job]
        for run in gone:
            run_directory.delete(run)
        return len(gone)

    def log_of(self, worker_id: str) -> tuple[Path, Worker | None]:
        """The file of a worker's log, and the worker itself unless it is forgotten; raises Refused."""
        with self.lock:
            if worker := self.known.get(worker_id):
                return worker.run / "log", worker
            if (self.forgotten / worker_id).exists():
                return self.forgotten / worker_id / "log", None
        raise Refused(404, f"no worker {worker_id}")

    def running(self, worker_id: str) -> Path:
        """The run directory of a worker that runs; raises Refused."""
        with self.lock:
            worker = self.worker(worker_id)
            if worker.view["phase"] != "running" or worker.view["status"] is not None:
                raise Refused(409, f"worker {worker_id} does not run")
            return worker.run

    def reach(self, run: Path, line: int) -> None:
        """Have a line served beside a worker; returns once that is over."""
        with self.lock:  # before anything looks for orphans among our children
            pid = run_directory.spawn_exec_session(run, line)
            process = supervisor.process_at(pid)
            if process:
                self.supervisors[pid] = process.ticks
            handle = supervisor.handle_of(pid, process.ticks) if process else None
        if handle is not None:
            select.select([handle], [], [])
            os.close(handle)

    def listed(self, after: str, wait_s: float) -> dict[str, Any]:
        """All workers, as soon as they differ from what they were at `after` or `wait_s` is over."""
        with self.lock:
            self.lock.wait_for(lambda: self.closing or after != f"{self.instance}:{self.version}", wait_s)
            workers = [each for _, each in sorted(self.known.items())]
            return {
                "instance": self.instance,
                "version": self.version,
                "workers": [each.view for each in workers],
                "others": len(self.others),
                "use": self.use_of_places(),
                "damage": [f"{each.run.name}: {each.damage}" for each in workers if each.damage],
            }

    def close(self) -> None:
        """Let go of all waiting requests. Workers go on."""
        with self.lock:
            self.closing = True
            self.lock.notify_all()
        self.hurry()
        self.watcher.join(timeout=5.0)

    # What follows is called with the lock held, but for `watch` and `look`.

    def worker(self, worker_id: str) -> Worker:
        """A worker by its id; raises Refused."""
        if worker := self.known.get(worker_id):
            return worker
        raise Refused(404, f"no worker {worker_id}")

    def shown(self, worker: Worker) -> dict[str, Any]:
        """One worker, and when it was so."""
        return {"instance": self.instance, "version": self.version, "worker": worker.view}

    def changed(self) -> None:
        """Tell all waiting requests."""
        self.version += 1
        self.lock.notify_all()

    def hurry(self) -> None:
        """Look again at once."""
        with suppress(BlockingIOError):
            os.write(self.woken, b"!")

    def watch(self) -> None:
        """See what becomes of the workers, as long as this agent lives."""
        while not self.closing:
            poll = select.poll()
            poll.register(self.wake, select.POLLIN)
            with self.lock:
                going = [each for each in self.known.values() if not each.ended]
                for worker in going:
                    if worker.handle is not None:
                        poll.register(worker.handle, select.POLLIN)
            soon = any(each.killed or each.view["phase"] == "starting" for each in going)
            if any(file == self.wake for file, _ in poll.poll(int((HURRY_S if soon else WATCH_S) * 1000))):
                os.read(self.wake, 4096)
            self.reap()
            self.look()

    def reap(self) -> None:
        """Wait for children that have ended: supervisors, and orphans of those that were killed."""
        with suppress(ChildProcessError), self.lock:
            while pid := os.waitpid(-1, os.WNOHANG)[0]:
                self.supervisors.pop(pid, None)

    def look(self) -> None:
        """Read what the run directories of all workers say that have not ended."""
        with self.lock:
            for worker in self.known.values():
                if not worker.ended:
                    try:
                        self.look_at(worker)
                    except (OSError, ValueError) as failure:  # of one: the others must not suffer from it
                        print(f"cannot read {worker.run}: {failure}", file=sys.stderr, flush=True)

    def watch_others(self) -> None:
        """See which devices others have, as long as this agent lives: a driver may take its time."""
        while not self.closing:
            self.look_for_others()
            with self.lock:
                self.lock.wait_for(lambda: self.closing, LOOK_FOR_OTHERS_S)

    def look_for_others(self) -> None:
        """See which devices others have."""
        with self.lock:
            ours = self.devices_of_ours()
        others = self.devices.look(ours)
        with self.lock:
            others -= self.devices_of_ours()
            if others != self.others:
                self.others = others
                self.changed()

    def watch_use(self) -> None:
        """See how busy the devices are, as long as this agent lives."""
        assert self.use is not None
        while not self.closing:
            self.use.take()
            with self.lock:
                self.lock.wait_for(lambda: self.closing, SAMPLE_EVERY_S)

    def use_of_places(self) -> list[dict[str, Any] | None]:
        """How busy the device of each place is; empty where the places are no real GPUs."""
        if self.use is None:
            return []
        going = (each for each in self.known.values() if not each.ended)
        device_by_place = {
            place: device
            for each in going
            for place, device in zip(each.started["gpus"], devices_of(each.started), strict=False)
        }
        shown = self.use.of_devices()
        return [shown[device] for device in device_of_place(len(shown), device_by_place)]

    def watch_logs(self) -> None:
        """Keep the logs of each job within their bound, as long as this agent lives."""
        while not self.closing:
            for logs in self.logs_of_jobs():
                with suppress(OSError):  # of one: the others must not suffer from it
                    self.bound.keep(logs)
            with self.lock:
                self.lock.wait_for(lambda: self.closing, WATCH_LOGS_S)

    def logs_of_jobs(self) -> list[list[Path]]:
        """Of each job with workers that are not forgotten: its logs on this machine."""
        logs_by_job: dict[str, list[Path]] = {}
        with self.lock:
            for each in self.known.values():
                logs_by_job.setdefault(each.run.name.partition(".")[0], []).append(each.run / "log")
            older = {job: logs for job, logs in self.older.items() if job in logs_by_job}
            missing = [job for job in logs_by_job if job not in older]
            self.older = older | {job: [] for job in missing}
        for job in missing:
            # Most jobs have one worker, the first. It can have had none before it.
            alone = [path.parent.name for path in logs_by_job[job]] == [f"{job}.1.0"]
            older[job] = [] if alone else list(attempts_of(self.forgotten, job))
            with self.lock:
                if job in self.older:  # else a worker of it was forgotten meanwhile: it is read again
                    self.older[job] = older[job]
        return [logs + older[job] for job, logs in logs_by_job.items()]

    def look_at(self, worker: Worker) -> None:
        """Read what one run directory says, and look for what is left where its supervisor is gone."""
        lives = run_directory.supervisor_lives(worker.run)  # first: what is read after its end is final
        ends = run_directory.read_ends(worker.run)
        ending, notes = ends.ended, ends.running
        if ending is None and not lives:
            ending = self.end_lost(worker, ends)
        if worker.handle is None and ending is None and notes and lives:
            worker.handle = supervisor.handle_of(notes["keeper_pid"], notes["keeper_ticks"])
        if worker.handle is not None and (ending or not lives):
            os.close(worker.handle)
            worker.handle = None
        if ending:
            close_all(worker.locks)
            containment.remove_group(worker.started.get("group") or "")
        damage = ", ".join(filter(None, (worker.start_damage, ends.damage)))
        view = view_of(worker.started, notes, ending, damage)
        if (view, damage) != (worker.view, worker.damage):
            if damage and damage != worker.damage:
                print(f"worker {worker.run.name} is set aside: {damage}", file=sys.stderr, flush=True)
                with suppress(OSError):  # so that its supervisor can write down how it ended
                    run_directory.make_way(worker.run / "ended.json", worker.run / "running.json")
            worker.view, worker.damage = view, damage
            self.changed()

    def end_lost(self, worker: Worker, ends: run_directory.Ends) -> dict[str, Any] | None:
        """Kill what is left of a worker whose supervisor is gone; how it ended, once nothing is."""
        group = worker.started.get("group") or ""
        left = run_directory.leftovers(
            worker.started["mark"], ends.running, worker.run
        ) + containment.members(group)
        left += containment.strangers(self.supervisors) if self.adopts else []
        containment.kill(group, left)
        worker.killed = True
        if left:
            return None
        ending = run_directory.lost_ending(worker.run, ends.running, worker.start_damage or ends.damage)
        with suppress(OSError):  # then the next agent finds the same again
            supervisor.write_durably(worker.run / "ended.json", ending)
        return ending


def view_of(
    started: dict[str, Any],
    notes: dict[str, Any] | None,
    ending: dict[str, Any] | None,
    damage: str = "",
) -> dict[str, Any]:
    """What is shown of a worker."""
    notes = notes or {}
    details = {"stopped": False, "why": damage, **notes, **(notes.get("exit") or {}), **(ending or {})}
    going = "running" if notes else "unknown" if damage else "starting"
    view = {name: started[name] for name in ("id", "job", "gpus")}
    names = ("pid", "status", "signal", "stopped", "why", "started_s", "ended_s", "lasted_s")
    return {**view, "phase": "ended" if ending else going, **{name: details.get(name) for name in names}}


def lender_in(path: Path) -> str:
    """The lender that an earlier agent was told of; "" for none, and where the file cannot be read.

    The service knows it, too, and tells the agent of each node that changes hands.
    """
    with suppress(OSError, run_directory.Damaged):
        shape = {"lender": lambda value: isinstance(value, str)}
        return str((run_directory.read_shaped(path, shape) or {"lender": ""})["lender"])
    return ""


def devices_of(started: dict[str, Any]) -> list[int]:
    """The devices that a worker has; of one that an older agent started, those of its places."""
    found: list[int] | None = started.get("devices")
    return started["gpus"] if found is None else found


def worker_in(run: Path) -> Worker:
    """The worker of a run directory, as it is before anything else is read."""
    started, damage = run_directory.read_start(run)
    return Worker(run, started, view_of(started, None, None, damage), start_damage=damage)
