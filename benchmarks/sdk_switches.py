"""How much training is lost when a job grows, shrinks or moves in place, and when it is restarted instead?

Real processes on this machine, driven over the channel. What is lost is the time from the end of the last
step until the group is ready for the next one; newcomers start and import beforehand, while the training goes
on. A restart writes a checkpoint, ends, starts one new process of the interpreter, and reads the checkpoint:
at one worker, which is the least it can cost. `imported` is a restart whose process is forked from one that
has imported PyTorch.

    OMP_NUM_THREADS=1 python benchmarks/sdk_switches.py [--times 20] [--sizes mlp,transformer] [--kinds …]
"""

import argparse
import json
import os
import platform
import statistics
from pathlib import Path

from stretto.experiments.ones.switches import a_training, by_restart, in_place


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--sizes", default="mlp,transformer", help="of mlp, cnn, transformer")
    parser.add_argument("--kinds", default="in-place,imported,restart")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(
        f"{'model':>11} {'parameters':>10} {'switch':>8} {'median':>7} {'worst':>7}   s, {asked.times} times"
    )
    rows, kinds = [], asked.kinds.split(",")
    for size in asked.sizes.split(","):
        count = sum(each.numel() for each in a_training(size)[0].parameters())
        lost = in_place(size, asked.times) if "in-place" in kinds else {}
        for kind in ("imported", "restart"):
            if kind in kinds:
                lost[kind] = by_restart(size, asked.times, kind == "imported")
        for kind, lost_s in lost.items():
            median_s, worst_s = statistics.median(lost_s), max(lost_s)
            row = {"model": size, "switch": kind, "median_s": median_s, "worst_s": worst_s, "lost_s": lost_s}
            print(f"{size:>11} {count:>10,} {kind:>8} {median_s:>7.3f} {worst_s:>7.3f}", flush=True)
            rows.append(row)
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
