"""Sia here beside Sia's published simulator, on the ten workloads of 160 jobs that its authors share.

    python benchmarks/sia_artifact.py [--data DIR] [--variants] [--files 10]

Published figures were measured by running the authors' simulator as it is (heterogeneous cluster of 64 GPUs,
p = -0.5, lambda = 1.1, rounds of 60 s). `--variants` changes one thing at a time, so that each difference
between the paper and its simulator gets its price. One file takes a few seconds; DIR is laid out as
docs/traces.md says, and taken from $STRETTO_DATA where it is not given.
"""

import argparse
import os
import time
from pathlib import Path

import numpy as np

from stretto.experiments.spec import RunSpec, run_spec
from stretto.model import FloatArray, InputError

FIGURES = ("avg_jct_h", "p99_index_jct_h", "makespan_h", "gpu_hours_per_job", "restarts_per_job")
PUBLISHED = {  # measured from the simulator of Sia's authors; in the order of FIGURES
    "philly-1": (0.542, 7.89, 15.53, 4.03, 4.26),
    "philly-2": (0.732, 10.33, 13.35, 3.53, 4.36),
    "philly-3": (0.569, 4.09, 11.04, 2.72, 3.94),
    "philly-4": (0.689, 10.92, 14.47, 4.01, 4.38),
    "philly-5": (0.655, 11.20, 13.97, 4.51, 4.44),
    "helios-1": (0.581, 7.71, 12.46, 3.61, 4.12),
    "helios-2": (0.700, 9.12, 12.62, 3.83, 4.24),
    "helios-3": (0.728, 10.70, 15.15, 5.04, 4.13),
    "helios-4": (0.852, 13.09, 16.56, 5.64, 4.64),
    "helios-5": (0.662, 8.07, 14.15, 4.45, 4.21),
}
VARIANTS: dict[str, dict[str, str]] = {
    "as the published simulator": {},
    "one-GPU profiles known (paper)": {"policy.first_type": "profiled"},
    "G^p not rounded (paper)": {"policy.decimals": "-1"},
    "the best fit, not where L-BFGS-B stops": {"estimate.fit": "best"},
    "most observed type stands in (paper)": {"estimate.reference": "most"},
    "restart factor never below waiting": {"policy.discount": "robust"},
    "clock, delays, calibration (paper)": {
        "sim.fidelity": "paper",
        "policy.first_type": "blind",
        "policy.decimals": "2",
        "estimate.fit": "published",
        "estimate.reference": "first",
    },
    "everything as in the paper": {"sim.fidelity": "paper"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", default=os.environ.get("STRETTO_DATA", ""), help="public data sets")
    parser.add_argument("--variants", action="store_true", help="also change one thing at a time")
    parser.add_argument("--files", type=int, default=len(PUBLISHED), help="only the first so many")
    options = parser.parse_args()
    folder = Path(options.data) / "sia"
    if not folder.is_dir():
        raise SystemExit(str(InputError(f"--data {options.data}: expected a folder with the data set sia")))
    names = list(PUBLISHED)[: options.files]
    print_header()
    first = run(folder, names, {}, each=True)
    if options.variants:
        print()
        for title, settings in VARIANTS.items():
            figures = run(folder, names, settings, each=False) if settings else first
            print_row(title, figures.mean(axis=0), published(names).mean(axis=0))


def run(folder: Path, names: list[str], settings: dict[str, str], each: bool) -> FloatArray:
    """(files, figures)"""
    found = []
    for name in names:
        family, number = name.split("-")
        began = time.perf_counter()
        spec = RunSpec(
            cluster="sia-hetero-64",
            trace=str(folder / "workloads" / family / f"workload-{number}.csv"),
            policy="sia",
            profiles=str(folder / "profiles"),
            settings=settings,
        )
        summary = run_spec(spec).summary()
        found.append(
            [
                summary["avg_jct_s"] / 3600,
                summary["p99_index_jct_s"] / 3600,
                summary["makespan_s"] / 3600,
                summary["gpu_hours_per_job"],
                summary["restarts_per_job"],
            ]
        )
        if each:
            print_row(name, np.array(found[-1]), np.array(PUBLISHED[name]), time.perf_counter() - began)
    figures = np.array(found)
    if each:
        print_row("mean", figures.mean(axis=0), published(names).mean(axis=0))
    return figures


def published(names: list[str]) -> FloatArray:
    """(files, figures)"""
    return np.array([PUBLISHED[name] for name in names])


def print_header() -> None:
    print(f"{'ours, and over the published':40}" + "".join(f"{name:>20}" for name in FIGURES) + f"{'s':>7}")


def print_row(name: str, ours: FloatArray, theirs: FloatArray, wall_s: float | None = None) -> None:
    cells = "".join(f"{one:11.3f} ×{ratio:6.3f} " for one, ratio in zip(ours, ours / theirs, strict=True))
    print(f"{name:40}{cells}" + (f"{wall_s:6.1f}" if wall_s is not None else ""), flush=True)


if __name__ == "__main__":
    main()
