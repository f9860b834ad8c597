"""The same trace on the service with an emulated cluster, and in the simulator: mean JCTs, deadlines kept.

    python benchmarks/live_against_sim.py --cluster sia-homo-64 --trace "synthetic-sia:jobs=40" --pace 100
    python benchmarks/live_against_sim.py --lyra-testbed --pace 100

The second is the scene of table 10 of Lyra (EuroSys 2023): four own servers and four of a lender, whose
demand is replayed. With lenders it also says how often nodes changed hands, what that cost, and how long they
took.

Jobs are submitted over HTTP at their times, on the service's clock. The simulation is told of them what the
service knows (`sim.knowledge`). Then the log is decided again, and differences are counted. Figures are
printed as one JSON object.
"""

import argparse
import json
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np

from stretto.client import Client
from stretto.clusters.demand import read_demand
from stretto.experiments.lyra.testbed import SCHEMES, run_of
from stretto.experiments.spec import DEMAND, RunSpec, parse_settings, set_up
from stretto.model import Job, Purpose
from stretto.service.emulated.workload import job_file
from stretto.service.eventlog import open_store
from stretto.service.scheduling.replay import decided_again
from stretto.sim.result import Result
from stretto.sim.run import Setup, simulate
from stretto.sim.setup import truth_of
from stretto.traces import Workload

ROUNDS_S = 600.0  # a multiple of the rounds of all policies


def job_files(workload: Workload, setup: Setup) -> list[str]:
    """The text to submit for each job; a training says how many epochs it has."""
    return [
        job_file(
            job,
            truth,
            setup.cluster,
            len(truth_of(job, setup.cluster, setup.sim, setup.profiles).epoch_ends)
            if isnan(truth.duration_s) and job.purpose is Purpose.TRAINING
            else 0,
        )
        for job, truth in zip(workload.jobs, workload.truths, strict=True)
    ]


def submitted(client: Client, workload: Workload, files: Sequence[str], pace: float) -> dict[str, str]:
    """Submit every job at its time; its id there by its id in the trace."""
    asked = time.monotonic()
    probe = client.submit(files[0])  # tells what the service's clock says
    began, began_s = (asked + time.monotonic()) / 2, probe["submitted_s"]
    client.change(probe["id"], "cancel")
    found = {}
    for job, text in zip(workload.jobs, files, strict=True):
        wait = (job.submitted_s - began_s) / pace - (time.monotonic() - began)
        if wait > 0:
            time.sleep(wait)
        found[str(job.id)] = client.submit(text)["id"]
    return found


def lived(
    given: argparse.Namespace, workload: Workload, setup: Setup, folder: str
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Run the workload on the service: jobs by their ids in the trace, and lenders, as it shows them."""
    words = [str(Path(sys.executable).with_name("stretto")), "serve", "--state", folder]
    words += ["--listen", "127.0.0.1:0", "--backend", "emulated", "--cluster", given.cluster]
    words += ["--pace", f"{given.pace:g}", "--policy", given.policy, "--insecure-loopback"]
    words += ["--seed", str(given.seed)]
    words += ["--profiles", given.profiles] if given.profiles else []
    words += [] if given.eager else ["--rounds-only"]
    words += [word for one in given.set for word in ("--set", one)]
    log = Path(folder).with_suffix(".said")
    with log.open("w") as said:
        service = subprocess.Popen(words, stdout=said, stderr=said)
    try:
        while not (found := re.search(r"http://[\w.:]+", log.read_text())):
            if service.poll() is not None:
                raise SystemExit(log.read_text())
            time.sleep(0.05)
        with Client(found.group()) as client:
            names = submitted(client, workload, job_files(workload, setup), given.pace)
            return {job: client.wait(name) for job, name in names.items()}, client.lenders()
    finally:
        service.send_signal(signal.SIGTERM)
        service.wait(30)


def again(folder: str) -> dict[str, Any]:
    """Decide the log again."""
    with open_store(Path(folder, "stretto.db")) as store:
        took_ms = [one.body["took_ms"] for one in store.read(kinds=["Decided"])]
        replay = decided_again(store)
    return {
        "decisions": replay.decisions,
        "differences": len(replay.differences),
        "decision_ms": {"median": statistics.median(took_ms), "largest": max(took_ms)},
    }


def demand_put_off(path: Path, folder: str, by_s: float) -> Path:
    """The demand of lenders, so much later; before, it is what it begins with. by_s: whole periods."""
    period_s, shares = read_demand(path)
    before = [float(shares[0])] * round(by_s / period_s)
    rows = "".join(f"{row * period_s:g},{share}\n" for row, share in enumerate([*before, *shares.tolist()]))
    later = Path(folder, "demand.csv")
    later.write_text(f"timestamp_s,demand_fraction\n{rows}")
    return later


def changes_of_hands(
    folder: str, lenders: list[dict[str, Any]], result: Result, pace: float
) -> dict[str, Any]:
    """What came of lending, in both: settlements that changed it, what jobs lost, and waits of lenders."""
    with open_store(Path(folder, "stretto.db")) as store:
        loans = [one.body.get("loans", {}) for one in store.read(kinds=["Decided"])]
    settled = result.history.settled
    on_loan = np.array([0, *(one.on_loan for one in settled)])
    shown = {
        "nodes lent": {
            "live": sum(len(one.get("lent", ())) for one in loans),
            "sim": int(np.maximum(np.diff(on_loan), 0).sum()),
        },
        "nodes returned": {
            "live": sum(len(one.get("returned", ())) for one in loans),
            "sim": int(np.maximum(-np.diff(on_loan), 0).sum()),
        },
        "jobs stopped": {
            "live": sum(len(one.get("preempted", ())) for one in loans),
            "sim": sum(one.preempted for one in settled),
        },
    }
    waits = {
        lender["name"]: {key: lender[key] for key in ("waits", "waits_missed", "longest_wait_s")}
        for lender in lenders
    }
    smaller = sum(len(one.get("scaled_in", ())) for one in loans)
    return {
        **shown,
        "jobs made smaller live": smaller,
        "waits live": waits,
        "nodes back live": times_of_returns(folder, pace),
    }


def times_of_returns(folder: str, pace: float) -> dict[str, Any]:
    """How long nodes took from the settlement that called them back until their lender had them."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.service.lenders_log import returns

    with open_store(Path(folder, "stretto.db")) as store:
        back = returns((one.seq, one.at_s, one.kind, dict(one.body)) for one in store.read())
    took_s = [each.took_s for each in back]
    wall_s = [each.hand_over_s / pace for each in back]
    return {
        "nodes": len(back),
        "took_s": {"median": statistics.median(took_s), "longest": max(took_s)} if back else None,
        "of which hand-over, wall time_s": (
            {"median": statistics.median(wall_s), "longest": max(wall_s)} if back else None
        ),
    }


def put_off(job: Job, by_s: float) -> Job:
    """The job with its deadlines, so much later."""
    rewards = tuple(replace(reward, deadline_s=reward.deadline_s + by_s) for reward in job.rewards)
    return replace(job, submitted_s=job.submitted_s + by_s, rewards=rewards)


def compared(live: dict[str, Any], result: Result, shift_s: float) -> dict[str, Any]:
    """Figures of both; JCTs count from the submission on each one's own clock."""
    jobs = result.requests.jobs
    sim_s = {
        str(job.id): float(end) - job.submitted_s for job, end in zip(jobs, result.completed_s, strict=True)
    }
    wait_s = {
        str(job.id): float(at) - job.submitted_s for job, at in zip(jobs, result.first_start_s, strict=True)
    }
    live_s = {job: one["ended_s"] - one["submitted_s"] for job, one in live.items()}
    late_s = [
        one["submitted_s"] - shift_s - job.submitted_s for job, one in zip(jobs, live.values(), strict=True)
    ]
    due_s = {str(job.id): job.deadline_s - job.submitted_s for job in jobs if job.rewards}
    mean = statistics.mean
    return {
        "jobs": len(jobs),
        "mean_jct_s": {"live": mean(live_s.values()), "sim": mean(sim_s.values())},
        "ratio": mean(live_s.values()) / mean(sim_s.values()),
        "median ratio of a job": statistics.median(live_s[job] / sim_s[job] for job in sim_s),
        "mean_wait_s": {
            "live": mean(one["started_s"] - one["submitted_s"] for one in live.values()),
            "sim": mean(wait_s.values()),
        },
        "deadlines": {
            "jobs": len(due_s),
            "kept live": sum(live_s[job] <= due_s[job] for job in due_s),
            "kept sim": sum(sim_s[job] <= due_s[job] for job in due_s),
            "only live": [job for job in due_s if live_s[job] <= due_s[job] < sim_s[job]],
            "only sim": [job for job in due_s if sim_s[job] <= due_s[job] < live_s[job]],
        },
        "gpu_h": {
            "live": sum(one["gpu_s"] for one in live.values()) / 3600,
            "sim": float(result.attained_gpu_s.sum()) / 3600,
        },
        "restarts_a_job": {
            "live": mean(one["attempt"] - 1 for one in live.values()),
            "sim": float(result.restarts.mean()),
        },
        "arrival_late_s": {"mean": mean(late_s), "largest": max(late_s)},
        "states": sorted({one["state"] for one in live.values()}),
    }


def main() -> None:
    """Simulate, live, decide again, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cluster", default="sia-homo-64")
    parser.add_argument("--trace", default="synthetic-sia:jobs=40")
    parser.add_argument("--profiles", default="")
    parser.add_argument("--policy", default="sia")
    parser.add_argument("--pace", type=float, default=100.0)
    parser.add_argument("--eager", action="store_true", help="the service decides at arrivals and ends, too")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lyra-testbed", action="store_true", help="instead of cluster, trace and policy")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if given.lyra_testbed:
            run = run_of(SCHEMES["lyra"], Path(folder), given.seed)
            given.cluster, given.trace, given.policy = run.cluster, run.trace, run.policy
            chosen = {**run.settings, "lend.on_demand": "false"}  # as in the simulated world
            given.set = [*(f"{key}={value}" for key, value in chosen.items()), *given.set]
        given.set = ["sim.fidelity=paper", "sim.knowledge=live", *given.set]
        settings = parse_settings(given.set)
        spec = RunSpec(given.cluster, given.trace, given.policy, given.profiles, given.seed, settings)
        workload, setup = set_up(spec)
        # The service's clock is ahead before anybody can submit: everybody comes so many whole rounds later.
        shift_s = ROUNDS_S * round(10.0 * given.pace / ROUNDS_S + 1)
        later = replace(workload, jobs=[put_off(job, shift_s) for job in workload.jobs])
        result = simulate(workload, setup)
        if DEMAND in settings:
            path = demand_put_off(Path(settings[DEMAND]), folder, shift_s)
            given.set = [word for word in given.set if not word.startswith(DEMAND)] + [f"{DEMAND}={path}"]
        state = f"{folder}/state"
        live, lenders = lived(given, later, setup, state)
        figures = {**compared(live, result, shift_s), "log": again(state)}
        if lenders:
            figures["lending"] = changes_of_hands(state, lenders, result, given.pace)
    print(json.dumps({"given": vars(given), **figures}, indent=1))


if __name__ == "__main__":
    main()
