"""The scene from its first job to its summary."""

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from stretto import defaults
from stretto.client import Client
from stretto.demo.display import Screen
from stretto.demo.outcome import Outcome, outcome_of
from stretto.demo.own_service import FIRST_TOKEN, HERE, OwnService, until
from stretto.demo.scene import (
    Entry,
    begin_undisturbed,
    comes,
    compare_samples,
    folder_of,
    job_of,
    reached_in,
    text_of,
)
from stretto.errors import StrettoError
from stretto.jobfile.quantities import duration_s

LAST_LINES = 12  # of what a job has printed that did not complete
LOOK_S = 0.2  # between two looks at the jobs
PATIENCE_S = 600.0  # for all jobs of a scene; chosen: five times what they take on two slow cores
ENDS = (signal.SIGTERM, signal.SIGHUP)  # mean the same as ctrl-C: what runs here is in sessions of its own
# Trainings of a minute want rounds of seconds, and nobody is to wait for a second worker of somebody else.
SETTINGS = {"sia": {"round_s": "5", "wait_penalty": "2"}, "stretto": {"round_s": "5"}}


class DemoFailed(StrettoError):
    """A job did not come to its right end."""


@dataclass(frozen=True)
class Play:
    """How the scene is to be played."""

    entries: Sequence[Entry]
    examples: Path | None  # None: where they are known to be
    program: Sequence[str]  # what the interpreter runs as our command line
    policy: str = defaults.POLICY
    slots: int = 4
    seeds: int = 1  # of the undisturbed runs that each job is compared with
    serve: Sequence[str] = ()  # what else the service is told: of the cluster it is over; else this machine
    host: str = HERE  # where workers reach the service
    shared: Path | None = None  # a folder that all nodes of a cluster see; this one's temporary ones if not
    before: Callable[[Client], None] = lambda _: None  # the first job comes
    watch: Callable[[float, Sequence[dict[str, Any]]], None] = lambda *_: None  # at each look: time and jobs


def watched_at(service: OwnService) -> str:
    """The address of its pages, with where their token is if they ask for one."""
    timeline = f"{service.url}/timeline?hours=0.25"
    return timeline if service.host == HERE else f"{timeline} with the token in {service.state / FIRST_TOKEN}"


def play(how: Play, say: Callable[[str], None] = print) -> list[Outcome]:
    """What became of the jobs, in their order. Whatever happens, nothing that was started stays behind."""
    examples = folder_of(how.examples)
    with ExitStack() as stack:
        temporary = tempfile.TemporaryDirectory(prefix="stretto-demo-", dir=how.shared)
        folder = Path(stack.enter_context(temporary))
        for number in ENDS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as `nohup` has it
                stack.callback(signal.signal, number, signal.signal(number, _interrupt))
        options = [*(how.serve or ("--slots", str(how.slots), "--gpu-type", "cpu")), "--policy", how.policy]
        for key, value in SETTINGS.get(how.policy, {}).items():
            options += ["--set", f"policy.{key}={value}"]
        service = OwnService(folder, options, how.program, host=how.host)
        stack.callback(_uninterrupted, service.end)
        service.begin()
        say(f"watch it in a browser: {watched_at(service)}")
        stack.callback(_uninterrupted, partial(_leave, service))
        jobs = [job_of(entry, examples, folder / f"seen-{entry.at_s:g}") for entry in how.entries]
        with service.client() as client:
            try:
                how.before(client)
                with Screen(_slots_of(how, client)) as screen:
                    names = _submit_and_watch(client, screen, how, jobs)
            except StrettoError as failed:
                raise DemoFailed(f"{failed}; the service said last: {service.last_words()}") from None
            deadlines = [duration_s(job["deadline"]) if "deadline" in job else None for job in jobs]
            outcomes = [outcome_of(client, *each) for each in zip(names, deadlines, strict=True)]
            printed = ["".join(_log(client, name)).splitlines() for name in names]
        _uninterrupted(service.end)
        say("")
        say("the same scripts again, each alone and undisturbed" + _seeds(how.seeds))
        for entry, outcome, lines in zip(how.entries, outcomes, printed, strict=True):
            if outcome.state != "COMPLETED":
                outcome.last_words = lines[-LAST_LINES:]
            if entry.is_compared:
                outcome.reached = last_of(lines)
        compare(how.entries, examples, folder, how.seeds, outcomes, stack)
        return outcomes


def _submit_and_watch(client: Client, screen: Screen, how: Play, jobs: Sequence[dict[str, Any]]) -> list[str]:
    """Submit each job in its time and show them all until the last has ended; their ids."""
    entries = how.entries
    began_s = time.monotonic()
    names: list[str] = []
    listed: list[dict[str, Any]] = []
    late_s = 0.0
    while True:
        at_s = time.monotonic() - began_s
        while len(names) < len(jobs) and comes(entries[len(names)], at_s - late_s, listed):
            late_s = max(late_s, at_s - entries[len(names)].at_s)  # those behind keep their distance
            submitted = client.submit(text_of(jobs[len(names)]))
            names.append(submitted["id"])
            screen.say(f"{at_s:6.1f} s  {submitted['name']} is submitted: {_described(jobs[len(names) - 1])}")
        listed = list(client.jobs(everybody=True, ended=True))
        screen.show(at_s, listed)
        how.watch(at_s, listed)
        if len(names) == len(jobs) and all(job["ended_s"] is not None for job in listed):
            return names
        if at_s > PATIENCE_S:
            raise DemoFailed(
                f"after {at_s:.0f} s: " + ", ".join(f"{job['name']} {job['state']}" for job in listed)
            )
        time.sleep(LOOK_S)


def _slots_of(how: Play, client: Client) -> int:
    """How many workers there can be."""
    if not how.serve:
        return how.slots

    def gpus() -> int:
        return sum(int(node["gpus"]) - int(node["others"]) for node in client.nodes() if node["up"])

    return until(gpus, what="the cluster shows its nodes")


def _leave(service: OwnService) -> None:
    """Jobs do not end with the service: cancel those that an interrupt has left behind."""
    if service.process is None or service.process.poll() is not None:
        return
    with service.client() as client:
        for job in client.jobs(everybody=True):
            with suppress(StrettoError):
                client.change(job["id"], "cancel")
        until(lambda: not list(client.jobs(everybody=True)), what="all jobs of the scene have ended")


def _seeds(count: int) -> str:
    return f", with {count} seeds" if count > 1 else ""


def _described(job: dict[str, Any]) -> str:
    sizes = job.get("elastic")
    asked = int(job["resources"]["accelerators"])
    words = f"{sizes['min']} to {sizes['max']} workers" if sizes else f"{asked} worker" + "s" * (asked > 1)
    words += f", deadline {job['deadline']}" if "deadline" in job else ""
    return words + (", somebody waits for it" if job.get("kind") == "interactive" else "")


def _log(client: Client, job: str) -> Sequence[str]:
    """What every worker of the last attempt has printed: rank 0 need not be the first that came."""
    pieces: list[str] = []
    described = client.describe(job)
    for index in range(64):
        try:
            pieces += client.log(job, index, described["attempt"])
        except StrettoError:
            break
    return pieces


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _uninterrupted(end: Callable[[], None]) -> None:
    """Interrupts have been heard: they must not keep us from cleaning up."""
    numbers = (signal.SIGINT, *ENDS)
    before = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        end()
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


# ── the same scripts without a service: what they reach when no job is resized ────────────────────


LOOK_ALONE_S = 0.05
AT_ONCE = max(2, os.cpu_count() or 1)  # each has one thread


def compare(
    entries: Sequence[Entry],
    examples: Path,
    folder: Path,
    seeds: int,
    outcomes: Sequence[Outcome],
    stack: ExitStack,
) -> None:
    """Fill in what undisturbed runs reach, and whether the job saw the same samples as the first of them."""
    compared = [index for index, entry in enumerate(entries) if entry.is_compared]
    waiting = [(index, seed) for seed in range(seeds) for index in compared]
    running: list[subprocess.Popen[bytes]] = []
    for index, seed in waiting:
        while len(running) >= AT_ONCE:
            time.sleep(LOOK_ALONE_S)
            running = [process for process in running if process.poll() is None]
        samples = folder / f"alone-{index}-{seed}"
        process = begin_undisturbed(
            job_of(entries[index], examples, samples, seed), samples.with_suffix(".log")
        )
        stack.callback(_end, process)
        running.append(process)
    for process in running:
        process.wait()
    for index in compared:
        for seed in range(seeds):
            lines = (folder / f"alone-{index}-{seed}.log").read_text(encoding="utf-8").splitlines()
            if (reached := last_of(lines)) is not None:
                outcomes[index].alone.append(reached)
        samples = folder / f"seen-{entries[index].at_s:g}"
        comparison = compare_samples(examples, samples, folder / f"alone-{index}-0")
        outcomes[index].is_exact, outcomes[index].samples = comparison


def last_of(lines: Sequence[str]) -> float | None:
    """The figure of the latest epoch that any worker has printed."""
    epochs = [line for line in lines if line.startswith("epoch ")]
    return reached_in([max(epochs, key=lambda line: int(line.split()[1].rstrip(":")))]) if epochs else None


def _end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.kill()
        process.wait()
