"""Real trainings on two cores under the service, and a simulation of them: mean JCTs side by side.

    OMP_NUM_THREADS=1 python benchmarks/live_real.py --policy stretto [--scene demo]

Jobs run on the local backend, one thread a worker. `--scene long` is of elastic trainings that come at fixed
times, on two slots. `--scene demo` is what `stretto demo` plays: two elastic trainings, one of them with a
deadline, a rigid one that knows nothing of us, and a session that somebody waits for, on four slots.
What the service wrote down then says how fast each job was, how long starts and resizes took, and how much
there was to do; such jobs come at the same times in the simulator (`measured_run.py`). What remains is what
the simulator leaves out, or takes the mean of. Then the log is decided again. Figures are printed as one JSON
object.
Needs PyTorch and scikit-learn.
"""

import argparse
import contextlib
import json
import os
import re
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np

from stretto.demo.own_service import OwnService
from stretto.demo.play import SETTINGS
from stretto.demo.scene import SCENE, Entry, comes, job_of, text_of
from stretto.service.eventlog import open_store
from stretto.service.scheduling.replay import decided_again

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.measured_run import (
    DRAWS,
    SPEED_ERROR,
    Decision,
    Part,
    jcts,
    measured_in,
    read,
    simulated,
    spread,
)

EXAMPLES = Path(__file__).parents[1] / "examples"
DIGITS, TRANSFORMER = "digits_cnn.py --channels 48 --target 0", "tiny_transformer.py --target 100"
JOBS = (  # (seconds after the first, script, epochs, batch); each takes most of a minute alone
    (0.0, DIGITS, 180, 256),
    (8.0, TRANSFORMER, 18, 128),
    (20.0, DIGITS, 120, 256),
    (35.0, TRANSFORMER, 24, 128),
    (50.0, DIGITS, 240, 256),
    (80.0, TRANSFORMER, 12, 128),
)
LOOK_S = 0.2  # between two looks at the jobs


@dataclass(frozen=True)
class Scene:
    """Which jobs come when, and on what."""

    slots: int
    settings: Sequence[str]  # of the service, beside the policy
    entries: Sequence[Entry]
    jobs: Sequence[dict[str, Any]]  # as they are submitted

    @property
    def parts(self) -> list[Part]:
        """What the files tell of each."""
        runs = [job["run"].strip() for job in self.jobs]
        epochs = [re.search(r"--epochs (\d+)", run) for run in runs]
        return [
            Part(re.sub(r"--epochs \d+", "", run), int(found[1]) if found else 1)
            for run, found in zip(runs, epochs, strict=True)
        ]


def long_scene(given: argparse.Namespace) -> Scene:
    """The jobs, so many times as long, coming so many times as slowly, with a part of the batch."""
    entries, jobs = [], []
    for number, (at_s, script, epochs, batch) in enumerate(JOBS):
        entries.append(Entry("", at_s * given.scale))
        jobs.append(_job(number, script, max(round(epochs * given.scale), 1), batch // given.divide))
    return Scene(2, (), entries, jobs)


def _job(number: int, script: str, epochs: int, batch: int) -> dict[str, Any]:
    return {
        "name": f"real-{number}",
        "run": f"{sys.executable} {script} --epochs {epochs} --batch {batch}",
        "workdir": str(EXAMPLES),
        "resources": {"accelerators": 1},
        "elastic": {"min": 1, "max": 2},
        "batch": {"init": batch},
        "stop": {"epochs": epochs},
        "checkpoint": {"every": "10m"},
        "envs": {"OMP_NUM_THREADS": "1"},
    }


def demo_scene(given: argparse.Namespace) -> Scene:
    """What `stretto demo` plays."""
    settings = [f"policy.{key}={value}" for key, value in SETTINGS.get(given.policy, {}).items()]
    return Scene(4, settings, SCENE, [job_of(entry, EXAMPLES, None) for entry in SCENE])


SCENES = {"long": long_scene, "demo": demo_scene}


def lived(folder: Path, scene: Scene, given: argparse.Namespace) -> str:
    """Train; the path of the log."""
    options = ["--slots", str(scene.slots), "--gpu-type", "cpu", "--policy", given.policy]
    options += [word for setting in (*scene.settings, *given.set) for word in ("--set", setting)]
    service = OwnService(folder, options, ("-m", "stretto.cli.app"), {**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        service.begin()
        with service.client() as client:
            began, late_s, names, shown = time.monotonic(), 0.0, list[str](), list[dict[str, Any]]()
            while len(names) < len(scene.jobs):
                entry, at_s = scene.entries[len(names)], time.monotonic() - began
                if comes(entry, at_s - late_s, shown):
                    late_s = max(late_s, at_s - entry.at_s)  # those behind keep their distance
                    names.append(client.submit(text_of(scene.jobs[len(names)]))["id"])
                    continue
                time.sleep(LOOK_S)
                shown = list(client.jobs(everybody=True, ended=True)) if entry.waits else []
            for name in names:
                ended = client.wait(name)
                if ended["state"] != "COMPLETED":
                    raise SystemExit(f"job {name}: {ended['state']} {ended['why']}")
        service.kill(signal.SIGTERM)
    finally:
        service.end()
    return str(service.state / "stretto.db")


def decided(decisions: Sequence[Decision], named: dict[str, str]) -> list[str]:
    """Each change of a job's size in words."""
    return [f"{at_s:.1f} s: {named[job]} {gpus}" for at_s, job, gpus in decisions]


def rounded(values: Sequence[float], digits: int = 1) -> list[float]:
    """To print."""
    return [round(value, digits) for value in values]


def main() -> None:
    """Train, simulate, compare, decide again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--scene", choices=tuple(SCENES), default="long")
    parser.add_argument("--policy", default="sia")
    parser.add_argument("--scale", type=float, default=1.0, help="of the length of the long scene's jobs")
    parser.add_argument("--divide", type=int, default=1, help="the long scene's batches by this: more steps")
    parser.add_argument("--log", help="of an earlier run with the same options: compare that, train nothing")
    parser.add_argument("--keep", help="an empty folder for the service's state, to compare its log again")
    parser.add_argument("--set", action="append", default=[])
    given = parser.parse_args()
    before, scene = os.getloadavg()[0], SCENES[given.scene](given)
    with contextlib.ExitStack() as stack:
        folder = given.keep or stack.enter_context(tempfile.TemporaryDirectory())
        path = given.log or lived(Path(folder), scene, given)
        store = stack.enter_context(open_store(path))
        state, seen, decisions = read(store)
        replay = decided_again(store)
    names = sorted(state.jobs, key=lambda name: state.jobs[name].number)
    measured = measured_in(state, seen, names, scene.parts)
    world, in_sim = simulated(state, names, measured)
    named = {name: f"{name} {state.jobs[name].spec.name}" for name in names}
    live = jcts(state, names, [seen[name].ended_s for name in names])
    sim = jcts(state, names, world.accounting.completed_s.tolist())
    trainings = [truth for truth in measured.truths if truth is not None]
    draws = spread(state, names, measured)
    figures = {
        "given": vars(given),
        "cores": os.cpu_count(),
        "load": {"before": round(before, 1), "after": round(os.getloadavg()[0], 1)},  # 2 of it ours
        "jobs": len(names),
        "mean_jct_s": {"live": round(statistics.mean(live), 2), "sim": round(statistics.mean(sim), 2)},
        "ratio": round(statistics.mean(live) / statistics.mean(sim), 4),
        "jct_s": {"live": rounded(live), "sim": rounded(sim)},
        "first_start_s": {  # decided, after submission
            "live": rounded(jcts(state, names, [seen[name].first_given_s for name in names])),
            "sim": rounded(jcts(state, names, world.accounting.first_start_s.tolist())),
        },
        "decided": {"live": decided(decisions, named), "sim": decided(in_sim, named)},
        f"mean_jct_s of {DRAWS} simulations with steps off by {SPEED_ERROR:.0%}": {
            "least": round(draws[0], 1),
            "median": round(statistics.median(draws), 1),
            "mean": round(statistics.mean(draws), 1),
            "most": round(draws[-1], 1),
        },
        "live": {
            "restarts of a job": statistics.mean(state.jobs[name].attempt - 1 for name in names),
            "switches": sum(state.jobs[name].accounting.switches for name in names),
            "lost_s": round(sum(state.jobs[name].accounting.lost_s for name in names), 2),
        },
        "sim": {"restarts of a job": float(np.mean(world.accounting.starts)) - 1},
        "measured": {  # by training, and of the others how long they ran
            "start_s": [round(truth.restart_s, 2) for truth in trainings],
            "step_ms": [rounded([1e3 * one.step_s for one in truth.said.values()]) for truth in trainings],
            "sizes": [sorted(seen[name].did) for name in names if seen[name].is_training],
            "slowdown": [rounded(list(truth.slowdowns.values()), 3) for truth in trainings],
            "ran_s": [round(ran_s, 1) for ran_s in measured.ran_s if not isnan(ran_s)],
            "resizes": len(measured.pauses_s),
            "resize_s": round(measured.resize_s, 2),
        },
        "log": {"decisions": replay.decisions, "differences": len(replay.differences)},
    }
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
