"""Which jobs come when, and what they are compared with."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from stretto.errors import InputError

NUMBER = re.compile(r"\b(accuracy )?(\d+\.\d+)\b")  # of the last line that a script prints
LONGEST_S = 8.0  # that a job waits for a resize of others before it comes nevertheless


@dataclass(frozen=True)
class Entry:
    """A job of the scene."""

    file: str  # the job file, among the examples
    at_s: float  # when it comes
    epochs: int = 0  # instead of what its file says; 0: as it says
    is_compared: bool = False  # with the same script, undisturbed
    waits: bool = False  # until somebody has been resized: slow machines show it too


SCENE = (
    Entry("digits_cnn.yaml", 0.0, 50, True),
    Entry("rigid_ddp.yaml", 12.0, 40, waits=True),
    Entry("tiny_transformer.yaml", 16.0, 5, True),
    Entry("interactive.yaml", 26.0),  # while all workers are given
)
QUICK = (
    Entry("digits_cnn.yaml", 0.0, 40, True),
    Entry("rigid_ddp.yaml", 6.0, 20, waits=True),
    Entry("tiny_transformer.yaml", 6.5, 2, True),
    Entry("interactive.yaml", 20.0),
)


def comes(entry: Entry, at_s: float, shown: Sequence[dict[str, Any]]) -> bool:
    """Whether it is time for a job, by the clock and by what the jobs before it have come to."""
    resized = any(one["switches"] for one in shown)
    return at_s >= entry.at_s and (not entry.waits or resized or at_s >= entry.at_s + LONGEST_S)


def folder_of(examples: Path | None) -> Path:
    """The folder of the examples, absolute. Raises InputError where they are not there.

    None: those of this directory, of the installed package, or of the source tree that it runs from.
    """
    package = Path(__file__).parents[1]
    candidates = (Path("examples"), package / "examples", package.parents[1] / "examples")
    if examples is None:
        examples = next(
            (folder for folder in candidates if (folder / SCENE[0].file).is_file()), candidates[0]
        )
    missing = [entry.file for entry in SCENE if not (examples / entry.file).is_file()]
    if missing:
        raise InputError(
            f"--examples {examples}: expected the folder with {missing[0]}, as in the source tree"
        )
    return examples.resolve()


def job_of(entry: Entry, examples: Path, samples: Path | None, seed: int = 0) -> dict[str, Any]:
    """The job file with this interpreter, this folder, these epochs, and another seed where one is named."""
    job: dict[str, Any] = yaml.safe_load((examples / entry.file).read_text(encoding="utf-8"))
    run = job["run"].strip()
    if entry.epochs:
        run = re.sub(r"--epochs \d+", f"--epochs {entry.epochs}", run)
    if entry.is_compared and samples is not None:
        run += f" --seen {samples}"
    run += f" --seed {seed}" if seed else ""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return {**job, "run": run, "workdir": str(examples), "envs": {**job.get("envs", {}), "PATH": path}}


def text_of(job: dict[str, Any]) -> str:
    """A job as it is submitted; JSON is YAML."""
    return json.dumps(job)


def begin_undisturbed(job: dict[str, Any], printed: Path) -> "subprocess.Popen[bytes]":
    """The same script alone, on one worker that is never resized; what it prints goes to a file."""
    ours = ("STRETTO_", "RANK", "WORLD_SIZE", "MASTER_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    with printed.open("wb") as out:
        return subprocess.Popen(
            ["/bin/sh", "-c", f"exec {job['run']}"],
            cwd=job["workdir"],
            env={**env, **job["envs"]},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )


def reached_in(lines: Sequence[str]) -> float | None:
    """The figure in the last line that has one."""
    for line in reversed(lines):
        if found := NUMBER.search(line):
            return float(found[2])
    return None


def compare_samples(examples: Path, samples: Path, other: Path) -> tuple[bool, str]:
    """Whether two runs trained on the same samples, each once in every epoch; in words."""
    done = subprocess.run(
        [sys.executable, str(examples / "seen.py"), str(samples), str(other)],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode == 0, (done.stdout or done.stderr).strip().splitlines()[-1]
