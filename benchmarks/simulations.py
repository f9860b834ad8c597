"""How long whole simulations take, in seconds of a processor, and whether two checkouts simulate the same.

    python benchmarks/simulations.py sia-philly fifo-philly
    PYTHONPATH=OTHER/src python benchmarks/simulations.py sia-philly      # the same by another checkout

A run is called after its policy and its workload, such as `sia-newtrace-1` or `tiresias-philly`. Workloads
`philly-1`, `helios-2`, `newtrace-1` are those of Sia on 64 GPUs by measured profiles, in the fidelity of its
published simulator; `philly` is all of Philly's 82,247 jobs on 312 nodes of 8 GPUs. `--jobs` takes the first
so many. Two checkouts that print the same digest have simulated the same: starts, ends, restarts and GPU time
of every job, bit by bit. The data sets are laid out as docs/traces.md says.
"""

import argparse
import hashlib
import os
import time
from dataclasses import replace
from pathlib import Path

from stretto.experiments.spec import RunSpec, set_up
from stretto.model import GpuType, cluster_of
from stretto.sim.result import Result
from stretto.sim.run import simulate

PHILLY_NODES, PHILLY_GPUS = 312, 8  # 2,496 GPUs
SIA_FAMILIES = ("philly", "helios", "newtrace")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", nargs="+", help="POLICY-WORKLOAD")
    parser.add_argument("--data", default=os.environ.get("STRETTO_DATA", ""), help="public data sets")
    parser.add_argument("--jobs", type=int, help="only the first so many")
    options = parser.parse_args()
    print(f"{'run':22}{'jobs':>8}{'decisions':>11}{'s':>9}{'us each':>9}{'load':>7}  digest")
    for name in options.runs:
        run(name, Path(options.data), options.jobs)


def run(name: str, data: Path, jobs: int | None) -> None:
    """Simulate once, and print a line."""
    policy, _, workload_name = name.partition("-")
    workload, setup = set_up(spec_of(policy, workload_name, data))
    if workload_name == "philly":
        setup = replace(setup, cluster=cluster_of("philly", (GpuType("v100"), PHILLY_NODES, PHILLY_GPUS)))
    workload = replace(workload, jobs=workload.jobs[:jobs], truths=workload.truths[:jobs])
    began_s = time.process_time()
    result = simulate(workload, setup)
    took_s = time.process_time() - began_s
    decisions = len(result.decision_ms)
    print(
        f"{name:22}{len(workload.jobs):8}{decisions:11}{took_s:9.2f}{took_s / decisions * 1e6:9.0f}"
        f"{os.getloadavg()[0]:7.1f}  {digest_of(result)}",
        flush=True,
    )


def spec_of(policy: str, workload: str, data: Path) -> RunSpec:
    """What `stretto simulate` would be told."""
    if workload == "philly":
        return RunSpec("gpu8-256", str(data / "philly" / "philly.csv.gz"), policy)
    family, _, number = workload.rpartition("-")
    if family not in SIA_FAMILIES:
        raise SystemExit(f"{policy}-{workload}: expected philly or one of {SIA_FAMILIES} with a number")
    trace = data / "sia" / "workloads" / family / f"workload-{number}.csv"
    return RunSpec("sia-hetero-64", str(trace), policy, profiles=str(data / "sia" / "profiles"))


def digest_of(result: Result) -> str:
    """Of what every job got and when."""
    columns = (result.completed_s, result.first_start_s, result.executed_s, result.attained_gpu_s)
    hasher = hashlib.blake2b(digest_size=6)
    for column in (*columns, result.restarts):
        hasher.update(column.tobytes())
    return hasher.hexdigest()


if __name__ == "__main__":
    main()
