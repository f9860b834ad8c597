"""How much faster a sweep is in several processes, and what going on with one that is finished takes.

    python benchmarks/sweep_speedup.py --workers 1,2,4

The same sweep, of policies and seeds on one workload, runs once for each number of workers. Each time a new
process begins it, with an empty folder of finished simulations, so nothing is known beforehand. Then it is
run again on the folder of the last one, from which all of it should be taken. `in runs` is the sum of what
single simulations took, `of a core` what cores worked for them. Where `in runs` grows with the workers, they
get in each other's way. The last simulations run alone: no sweep scales beyond its longest one.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from stretto.experiments.comparison import specs_of
from stretto.experiments.finished import Finished
from stretto.experiments.sweep import cores, run_each

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.simulations import digest_of

HEAD = "  workers   wall s  speed-up  efficiency  in runs s  of a core s   load"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workers", default="", help="numbers of processes; else 1, 2, 4, … and all cores")
    parser.add_argument("--policies", default="tiresias,sia")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--trace", default="synthetic-sia:jobs=160")
    parser.add_argument("--cluster", default="sia-hetero-64")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)  # the folder of one sweep: run it here
    given = parser.parse_args()
    if given.one is not None:
        print(json.dumps(swept(given, given.one, int(given.workers))))
        return
    counts = [int(word) for word in given.workers.split(",") if word] or usual_counts(cores())
    print(f"{given.policies} with {given.seeds} seeds each on {given.trace}; {cores()} cores")
    print(HEAD)
    with tempfile.TemporaryDirectory() as folder:
        sweeps: list[dict[str, Any]] = []
        for count in counts:
            sweeps.append(in_new_process(Path(folder, str(count)), count))
            print_row(sweeps[-1], sweeps[0])
        again = in_new_process(Path(folder, str(counts[-1])), counts[-1])
    print(
        f"again, on what the last one kept: {again['wall_s']:.2f} s, {again['simulated']} of "
        f"{again['runs']} simulated"
    )
    if len({sweep["digest"] for sweep in (*sweeps, again)}) > 1:
        raise SystemExit("the sweeps do not give the same results")


def usual_counts(most: int) -> list[int]:
    """Powers of two up to all cores, and these."""
    return sorted({2**power for power in range(most.bit_length())} | {most})


def in_new_process(folder: Path, workers: int) -> dict[str, Any]:
    """What `swept` returns, by a process that has not simulated anything."""
    words = [sys.executable, *sys.argv, "--one", str(folder), "--workers", str(workers)]
    done = subprocess.run(words, stdout=subprocess.PIPE, check=True)
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def swept(given: argparse.Namespace, folder: Path, workers: int) -> dict[str, Any]:
    """Run the sweep in this process and so many others: seconds, and what came of it."""
    specs = specs_of(given.policies.split(","), [given.trace], range(given.seeds), {}, cluster=given.cluster)
    began_s = time.perf_counter()
    runs = run_each(specs, workers, finished=Finished(folder))
    return {
        "workers": workers,
        "wall_s": time.perf_counter() - began_s,
        "runs": len(runs),
        "simulated": sum(not run.was_kept for run in runs),
        "in_runs_s": sum(run.wall_s for run in runs),
        "processor_s": sum(run.processor_s for run in runs),
        "digest": " ".join(digest_of(run.result) for run in runs),
    }


def print_row(sweep: dict[str, Any], first: dict[str, Any]) -> None:
    """One sweep against the first."""
    speed_up = first["wall_s"] / sweep["wall_s"]
    efficiency = speed_up * first["workers"] / sweep["workers"]
    print(
        f"{sweep['workers']:9}{sweep['wall_s']:9.1f}{speed_up:10.2f}{efficiency:12.0%}"
        f"{sweep['in_runs_s']:11.1f}{sweep['processor_s']:13.1f}{os.getloadavg()[0]:7.1f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
