"""How long each policy takes for a decision, and about how many jobs it can decide within a limit of time."""

import json
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from os import sysconf
from pathlib import Path
from typing import IO, Any

from stretto.experiments.steady.cluster import LEAST_GPUS
from stretto.experiments.steady.measure import BEGINS, ENDS, figures_of, steady_times
from stretto.experiments.steady.world import Steady

LADDER = (32, 16, 8, 4, 2)  # parts of jobs and GPUs at which a policy is tried that exceeds the limit; chosen
LADDER_ROUNDS = 3  # decisions at each of them; chosen: the first takes longest of most policies
LOOK_S = 0.1  # between two looks at what a decision has taken so far; chosen


@dataclass(frozen=True, slots=True)
class PolicyTimes:
    """What decisions of one policy took, in ms of a processor; None: nothing could be measured."""

    policy: str
    decisions: int = 0  # measured
    first_ms: float | None = None  # the first one, in which nothing is remembered
    p50_ms: float | None = None
    max_ms: float | None = None
    peak_mb: float | None = None  # memory of the whole process
    exceeds: bool = False  # a decision was ended at the limit
    most_jobs: int | None = None  # of the ladder, that it can decide about within the limit
    error: str = ""  # the last line of what it said, where it broke off


def times_of_policies(
    steady: Steady,
    names: Sequence[str],
    limit_s: float,
    tell: Callable[[PolicyTimes], None] = lambda row: None,
) -> list[PolicyTimes]:
    """A row for each policy, each measured in processes of its own, one after the other.

    limit_s: processor time of one decision, after which it is ended. Where one takes longer, fewer jobs on
    as many fewer GPUs are tried, from the fewest on. All decisions at one number of jobs take less than twice
    the limit together: none begins after the limit. `tell` hears each row as soon as it is there.
    """
    rows = []
    for name in names:
        row = _alone(steady, name, limit_s)
        if row.exceeds:
            row = replace(row, most_jobs=_most_jobs(steady, name, limit_s))
        tell(row)
        rows.append(row)
    return rows


def _most_jobs(steady: Steady, name: str, limit_s: float) -> int | None:
    """The last rung of the ladder before one on which a decision takes too long."""
    most = None
    for part in LADDER:
        jobs, gpus = steady.jobs // part, max(steady.gpus // part, LEAST_GPUS)
        if jobs:
            fewer = replace(steady, jobs=jobs, gpus=gpus, rounds=LADDER_ROUNDS)
            if (row := _alone(fewer, name, limit_s)).exceeds or row.error:
                break
            most = jobs
    return most


class _TakesTooLong(Exception):
    """A decision has not ended within the limit."""


def _alone(steady: Steady, name: str, limit_s: float) -> PolicyTimes:
    """One policy about one steady state, in a process that can be ended and whose memory is its own."""
    words = json.dumps({"steady": asdict(steady), "policy": name, "enough_s": limit_s})
    command = [sys.executable, "-m", "stretto.experiments.steady.policy_times", words]
    with tempfile.TemporaryFile("w+") as stderr, _begun(command, stderr) as child:
        try:
            figures = _figures(child, limit_s)
        except _TakesTooLong:
            return PolicyTimes(name, exceeds=True)
        child.wait()
        if figures is None:
            stderr.seek(0)
            lines = stderr.read().split("\n")
            last = next((line for line in reversed(lines) if line.strip()), f"status {child.returncode}")
            return PolicyTimes(name, error=last)
    return PolicyTimes(
        policy=name,
        decisions=figures["decisions"],
        first_ms=figures["first_ms"],
        p50_ms=figures["total"]["p50_ms"],
        max_ms=figures["total"]["max_ms"],
        peak_mb=figures["peak_mb"],
    )


@contextmanager
def _begun(command: Sequence[str], stderr: IO[str]) -> Iterator[subprocess.Popen[str]]:
    """A process that does not outlive the block."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True) as child:
        try:
            yield child
        finally:
            with suppress(ProcessLookupError):
                child.kill()


def _figures(child: subprocess.Popen[str], limit_s: float) -> dict[str, Any] | None:
    """What it found out; None if it broke off. Raises _TakesTooLong while a decision goes on for too long."""
    lines: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_read, args=(child, lines), daemon=True).start()
    began_s: float | None = None  # of its processor time, at which the present decision began
    while True:
        try:
            line = lines.get(timeout=LOOK_S)
        except queue.Empty:
            if began_s is not None and _processor_s(child.pid) - began_s > limit_s:
                raise _TakesTooLong from None
            continue
        if line == BEGINS:
            began_s = _processor_s(child.pid)
        elif line == ENDS:
            began_s = None
        else:  # its figures, or "" at its end
            figures: dict[str, Any] | None = json.loads(line) if line else None
            return figures


def _read(child: subprocess.Popen[str], lines: "queue.Queue[str]") -> None:
    assert child.stdout is not None, "it was asked for"
    for line in child.stdout:
        lines.put(line.strip())
    lines.put("")


def _processor_s(pid: int) -> float:
    """Processor time of a process so far; where the system does not tell, that of the clock on the wall."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return time.monotonic()
    return (int(after_name[11]) + int(after_name[12])) / sysconf("SC_CLK_TCK")


def _measure(words: Mapping[str, Any]) -> None:
    """What the process of one policy says, line by line: decisions begin and end, then the figures."""

    def tell(line: str) -> None:
        print(line, flush=True)

    steady = Steady.of(words["steady"])
    measured = steady_times(steady, words["policy"], enough_s=words["enough_s"], tell=tell)
    tell(json.dumps(figures_of(measured)))


if __name__ == "__main__":
    _measure(json.loads(sys.argv[1]))
