"""The same scripts without a service: what they reach when nobody resizes them."""

import os
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from stretto.demo.outcome import Outcome
from stretto.demo.scene import Entry, begin_undisturbed, compare_samples, job_of, reached_in

LOOK_S = 0.05
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
            time.sleep(LOOK_S)
            running = [process for process in running if process.poll() is None]
        seen = folder / f"alone-{index}-{seed}"
        process = begin_undisturbed(job_of(entries[index], examples, seen, seed), seen.with_suffix(".log"))
        stack.callback(_end, process)
        running.append(process)
    for process in running:
        process.wait()
    for index in compared:
        for seed in range(seeds):
            lines = (folder / f"alone-{index}-{seed}.log").read_text(encoding="utf-8").splitlines()
            if (reached := last_of(lines)) is not None:
                outcomes[index].alone.append(reached)
        seen = folder / f"seen-{entries[index].at_s:g}"
        said = compare_samples(examples, seen, folder / f"alone-{index}-0")
        outcomes[index].is_exact, outcomes[index].samples = said


def last_of(lines: Sequence[str]) -> float | None:
    """The figure of the latest epoch that any worker has printed."""
    epochs = [line for line in lines if line.startswith("epoch ")]
    return reached_in([max(epochs, key=lambda line: int(line.split()[1].rstrip(":")))]) if epochs else None


def _end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.kill()
        process.wait()
