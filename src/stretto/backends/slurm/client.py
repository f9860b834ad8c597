"""Slurm's commands: how they are run, what is asked, and what was answered.

Slurm's own command line: run with a time limit, and what it says sorted into answers and silence.
"""

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from tempfile import TemporaryFile
from typing import IO

from stretto.backends.node_topology import NodeTopology
from stretto.backends.protocol import BackendUnreachable
from stretto.backends.slurm import parsers
from stretto.backends.slurm.options import SlurmOptions
from stretto.backends.slurm.parsers import SlurmJob, SlurmNode
from stretto.backends.slurm.topology import topology_in
from stretto.errors import InputError, StrettoError

NEEDED = ("sbatch", "squeue", "scancel", "scontrol")
AT_ONCE = 8  # commands under way; chosen: more make Slurm's controller no faster

# All that Slurm's commands see, and so all that a worker job begins with: sbatch exports what it has. If it
# were told a list, Slurm would load what a login of the user loads. The rest goes to workers by a private
# file.
USUAL = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "SLURM_CONF")
CREDENTIALS = ("SLURM_JWT", "KRB5CCNAME")  # by which commands say who we are; a worker job drops them at once
KEPT = (*USUAL, *CREDENTIALS)

# What Slurm's programs say when the controller did not answer, or not as itself; in lower case.
SILENCE = (
    "unable to contact slurm controller",
    "connection refused",
    "connect failure",
    "timed out",
    "zero bytes were transmitted",
    "unexpected message received",
    "backup controller in standby",
    "temporarily unable",
    "resource temporarily unavailable",
    "slurm_persist_conn",
    "unspecified error",
    "protocol authentication error",
    "could not establish a configuration source",
)
# What it says of a job that it would take at another time.
LATER = ("violates accounting/qos policy", "submit limit", "job size, and/or time limits", "limit exceeded")
# And what it says of one that it took when it was asked first: an admin has closed something for a while.
CLOSED = ("partition not available", "reservation not usable now", "i/o error writing script")


class Refusal(StrettoError):
    """Slurm answered, and it is a no."""


@dataclass
class Commands:
    """Runs the programs of Slurm."""

    options: SlurmOptions
    environment: Mapping[str, str] = field(init=False)
    turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))

    def __post_init__(self) -> None:
        """Settle what the programs find in their environment: no SQUEUE_FORMAT, no SBATCH_PARTITION."""
        had = {**os.environ, **self.options.environment}
        self.environment = {name: had[name] for name in KEPT if name in had}

    def missing(self) -> list[str]:
        """Programs that are not installed here."""
        path = self.environment.get("PATH", os.defpath)
        return [name for name in NEEDED if not shutil.which(name, path=path)]

    async def run(self, *command: str, text: str = "") -> str:
        """What a program prints. Raises Refusal, or BackendUnreachable where it may have happened or not."""
        # All goes through files. Python waits for the end of every pipe before it says that a process has
        # ended, which never comes where nobody reads, or where a site's script has left a program behind.
        with TemporaryFile() as stdin, TemporaryFile() as answer, TemporaryFile() as complaints:
            async with self.turns:
                try:
                    stdin.write(text.encode())
                    stdin.seek(0)
                    process = await asyncio.create_subprocess_exec(
                        *command,
                        stdin=stdin,
                        stdout=answer,
                        stderr=complaints,
                        env=dict(self.environment),
                        process_group=0,
                    )
                except OSError as failure:
                    raise BackendUnreachable(f"{command[0]} cannot be run: {failure.strerror}") from failure
                in_time = True
                try:
                    async with asyncio.timeout(self.options.answer_s):
                        await process.wait()
                except TimeoutError:
                    in_time = False
                finally:
                    if process.returncode is None:
                        with suppress(ProcessLookupError):
                            os.killpg(process.pid, signal.SIGKILL)
                        await process.wait()
            output, words = _text_of(answer), words_of(_text_of(complaints))
        if not in_time:
            why = f"Slurm did not answer {command[0]} within {self.options.answer_s:g} s"
            raise BackendUnreachable(f"{why}: {words}" if words else why)
        code = process.returncode or 0
        if code == 0:
            return output
        words = words or words_of(output)
        if code < 0 or is_silence(words) or not words:
            raise BackendUnreachable(f"{command[0]}: {words or f'ended with {code}'}")
        raise Refusal(words)


def _text_of(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def words_of(text: str) -> str:
    """What a program of Slurm complained of, in one line and without its own name."""
    lines: dict[str, None] = {}
    for line in text.splitlines():
        words = line.strip()
        for intro in ("sbatch: ", "squeue: ", "scancel: ", "scontrol: ", "sinfo: ", "error: ", "fatal: "):
            words = words.removeprefix(intro)
        words = words.removeprefix("Batch job submission failed: ").removeprefix("allocation failure: ")
        if words:
            lines[words] = None
    return "; ".join(lines)[:400]


def is_silence(words: str) -> bool:
    """Whether these words mean that it is not known what became of a request."""
    return any(sign in words.lower() for sign in SILENCE)


def is_for_later(words: str) -> bool:
    """Whether Slurm refused because of what holds now, such as a limit of jobs at a time."""
    return any(sign in words.lower() for sign in LATER)


def is_closed(words: str) -> bool:
    """Whether Slurm refused because of what an admin may open again."""
    return any(sign in words.lower() for sign in CLOSED)


def require(commands: Commands) -> None:
    """Raise InputError where Slurm's programs are not installed."""
    if missing := commands.missing():
        raise InputError(
            f"--backend slurm: this machine must have Slurm's commands in PATH, missing {', '.join(missing)}"
        )


def option(name: str, value: str) -> Sequence[str]:
    """A long option, or nothing for an empty value."""
    return (f"--{name}={value}",) if value else ()


# ── the questions and orders that Slurm gets, each one command, in whatever way its version can answer ──────


# Characters of JSON for jobs: old versions list everybody's, and columns of ours are cheaper
TOO_LONG = 1 << 20
STRANGE = (AttributeError, KeyError, TypeError, ValueError)  # what reading JSON of an unknown shape raises
GONE = ("invalid job id", "already completing", "already completed", "job has already finished")
NODES_IN_JSON = (("scontrol", "-a", "-d", "show", "nodes", "--json"), ("sinfo", "--all", "--json"))
NODES_IN_TEXT = ("scontrol", "-a", "-o", "-d", "show", "nodes")
TOPOLOGY = ("scontrol", "show", "topology")
JOBS_IN_JSON = ("squeue", "--me", "--all", "--states=all", "--json")
JOBS_IN_COLUMNS = ("squeue", "--me", "--all", "--states=all", "--noheader", f"--format={parsers.COLUMNS}")


@dataclass(frozen=True)
class Jobs:
    """Our jobs of Slurm, as they were at some time after `asked_s`."""

    asked_s: float  # monotonic
    jobs: list[SlurmJob]


@dataclass
class SlurmClient:
    """Asks Slurm; remembers which of its ways to answer this version has."""

    commands: Commands
    ways: list[tuple[str, ...]] = field(default_factory=lambda: list(NODES_IN_JSON))  # left to try for nodes
    jobs_in_json: bool = True

    def __post_init__(self) -> None:
        """Without JSON where that is asked for."""
        if not self.commands.options.json:
            self.ways, self.jobs_in_json = [], False

    async def nodes(self) -> list[SlurmNode]:
        """All nodes. Raises BackendUnreachable."""
        while self.ways:
            try:
                text = await self.commands.run(*self.ways[0])
                nodes = await asyncio.to_thread(parsers.nodes_in_json, text)
                if nodes is not None:
                    return nodes
            except (Refusal, *STRANGE):
                pass  # no such option in this version, or another shape than any that we know
            self.ways.pop(0)
        try:
            return parsers.nodes_in_text(await self.commands.run(*NODES_IN_TEXT))
        except Refusal as refusal:
            raise BackendUnreachable(f"Slurm does not show its nodes: {refusal}") from None

    async def topology(self) -> dict[str, NodeTopology]:
        """By node, where Slurm knows something of its network. Raises BackendUnreachable."""
        try:
            return topology_in(await self.commands.run(*TOPOLOGY))
        except Refusal:
            return {}

    async def set_state(self, nodes: Sequence[str], state: str, reason: str = "") -> None:
        """Drain or resume nodes, which takes an operator of Slurm. Raises BackendUnreachable."""
        words = [f"NodeName={','.join(nodes)}", f"State={state}", *([f"Reason={reason}"] if reason else [])]
        try:
            await self.commands.run("scontrol", "update", *words)
        except Refusal as refusal:
            raise BackendUnreachable(f"Slurm does not set {words[0]} to {state}: {refusal}") from None

    async def jobs(self) -> Jobs:
        """All jobs of this user that Slurm still knows. Raises BackendUnreachable."""
        asked_s = time.monotonic()
        if self.jobs_in_json:
            try:
                text = await self.commands.run(*JOBS_IN_JSON)
                jobs = await asyncio.to_thread(parsers.jobs_in_json, text)
                if jobs is not None:
                    self.jobs_in_json = len(text) < TOO_LONG
                    return Jobs(asked_s, [job for job in jobs if job.user in (None, os.getuid())])
            except (Refusal, *STRANGE):
                pass
            except BackendUnreachable:
                self.jobs_in_json = False  # it may be that everybody's jobs were too many for it
                raise
            self.jobs_in_json = False
        try:
            text = await self.commands.run(*JOBS_IN_COLUMNS)
        except Refusal as refusal:
            raise BackendUnreachable(f"Slurm does not show our jobs: {refusal}") from None
        return Jobs(asked_s, parsers.jobs_in_columns(text))

    async def job(self, job_id: int) -> SlurmJob | None:
        """One job in full; None where Slurm knows it no more. Raises BackendUnreachable."""
        try:
            return parsers.job_in_text(await self.commands.run("scontrol", "-o", "show", "job", str(job_id)))
        except Refusal as refusal:
            if any(sign in str(refusal).lower() for sign in GONE):
                return None
            raise BackendUnreachable(f"Slurm does not show job {job_id}: {refusal}") from None

    async def submit(self, command: list[str], script: str) -> int:
        """The number of a new job. Raises Refusal, or BackendUnreachable if it may or may not be there."""
        said = await self.commands.run(*command, text=script)
        number = said.strip().split("\n")[-1].split(";")[0]
        if not number.isdecimal():
            raise BackendUnreachable(f"sbatch did not say the number of the job but {said.strip()[:200]!r}")
        return int(number)

    async def cancel(self, job_id: int, *how: str) -> bool:
        """Cancel a job, or send it a signal; False where it is over. Raises BackendUnreachable."""
        try:
            await self.commands.run("scancel", *how, str(job_id))
        except Refusal as refusal:
            if any(sign in str(refusal).lower() for sign in GONE):
                return False
            raise BackendUnreachable(f"scancel of job {job_id}: {refusal}") from None
        return True

    async def signal(self, job_id: int, name: str) -> bool:
        """Send a signal to the batch script of a job, which is a supervisor; False where it is over."""
        return await self.cancel(job_id, f"--signal={name}", "--batch")
