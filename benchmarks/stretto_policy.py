"""The policy `stretto` beside Sia on the workloads of Sia's authors, and each of its parts left out.

    python benchmarks/stretto_policy.py [--data DIR] [--files philly-1,helios-1] [--parts] [--families]
        [--set KEY=VALUE]

160 jobs each, on 64 GPUs of three types, in the world of Sia's published simulator. DIR is laid out as
docs/traces.md says, and taken from $STRETTO_DATA where it is not given. *Less* is one less the ratio of two
means over the files, ours over Sia's. Behind it stands half of Student's 95 % interval over them. *In place*
a change of size costs 1 s, else it is a restart.

The policy was worked out on philly-1 and helios-1. The other files were run when it was done. philly-1~0 has
the jobs of philly-1 and its times of arrival, in an order that is drawn with the seed 0: more to work with.
--set: of `stretto` alone.
"""

import argparse
import csv
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from scipy.special import stdtrit

from stretto.experiments.spec import RunSpec, parse_settings, set_up
from stretto.model import BoolArray, FloatArray, InputError
from stretto.sim.run import simulate

FILES = tuple(f"{family}-{number}" for number in range(1, 6) for family in ("philly", "helios"))
IN_PLACE = {"sim.resize_s": "1"}
PARTS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "sia": ("sia", {}),
    "stretto": ("stretto", {}),
    "the product of remaining times is least": ("stretto", {"policy.exponent": "0", "policy.wait": "1"}),
    "each job learns alone": ("stretto", {"estimate.share": "job"}),
    "speeds are known beforehand": ("stretto", {"estimate.mode": "oracle", "policy.growth": "64"}),
    "changes are charged over all that is left": ("stretto", {"policy.lifetime_s": "1e9"}),
    "sia, speeds are known beforehand": ("sia", {"estimate.mode": "oracle", "policy.growth": "64"}),
    "sia, evidence of the model": ("sia", {"estimate.share": "model"}),
}


@dataclass(frozen=True)
class Outcome:
    """Of one policy on all files; arrays are (files,)."""

    mean_h: FloatArray
    p99_h: FloatArray
    makespan_h: FloatArray
    restarts: FloatArray

    def of_files(self, chosen: BoolArray) -> "Outcome":
        """On some of the files; chosen: (files,)."""
        return Outcome(
            self.mean_h[chosen], self.p99_h[chosen], self.makespan_h[chosen], self.restarts[chosen]
        )

    def as_row(self, name: str, sia: "Outcome") -> str:
        """Means over the files, and by how much each is less than Sia's."""
        means = (
            f"{self.mean_h.mean():.3f} | {self.p99_h.mean():.2f} | {self.makespan_h.mean():.2f} | "
            f"{self.restarts.mean():.2f}"
        )
        pairs = (
            (self.mean_h, sia.mean_h),
            (self.p99_h, sia.p99_h),
            (self.makespan_h, sia.makespan_h),
        )
        return f"| {name} | {means} | {' | '.join(less(own, of_sia) for own, of_sia in pairs)} |"


def outcome(data: Path, files: Sequence[str], policy: str, settings: Mapping[str, str]) -> Outcome:
    """Simulate a policy on every file."""
    rows = []
    for name in files:
        profiles = data / "sia" / "profiles"
        with TemporaryDirectory() as folder:
            trace = trace_of(data, name, Path(folder))
            spec = RunSpec("sia-hetero-64", str(trace), policy, str(profiles), settings=settings)
            result = simulate(*set_up(spec))
        jct_h = np.sort(result.jct_s) / 3600
        tail = jct_h[int(0.99 * len(jct_h))]  # as Sia's authors take it
        rows.append((jct_h.mean(), tail, result.completed_s.max() / 3600, result.restarts.mean()))
    return Outcome(*np.array(rows).T)


def trace_of(data: Path, name: str, folder: Path) -> Path:
    """The file of a workload; one in another order is written to `folder`."""
    base, mark, seed = name.partition("~")
    family, number = base.rsplit("-", 1)
    recorded = data / "sia" / "workloads" / family / f"workload-{number}.csv"
    if not mark:
        return recorded
    with recorded.open(newline="", encoding="utf-8") as file:
        jobs = list(csv.DictReader(file))
    in_order = list(jobs)
    random.Random(int(seed)).shuffle(in_order)
    trace = folder / recorded.name
    with trace.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(jobs[0]))
        writer.writeheader()
        for place, (arrival, job) in enumerate(zip(jobs, in_order, strict=True)):
            writer.writerow({**job, "time": arrival["time"], "name": f"{job['application']}-{place}"})
    return trace


def less(own: FloatArray, of_sia: FloatArray) -> str:
    """By how much the mean over files is less than Sia's, in per cent, with half of its interval."""
    reduction = 100 * (1 - own.mean() / of_sia.mean())
    return f"{reduction:.1f} ± {100 * half_interval(1 - own / of_sia):.1f}"


def half_interval(values: FloatArray) -> float:
    """Half of Student's 95 % interval of a mean; NaN of one value."""
    if len(values) < 2:
        return float("nan")
    return float(stdtrit(len(values) - 1, 0.975) * values.std(ddof=1) / np.sqrt(len(values)))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description="The policy stretto beside Sia.")
    parser.add_argument("--data", type=Path, default=os.environ.get("STRETTO_DATA"))
    parser.add_argument("--files", default=",".join(FILES))
    parser.add_argument(
        "--parts", action="store_true", help="also leave out each part, with resizes in place"
    )
    parser.add_argument("--families", action="store_true", help="also the means of each family of files")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="settings")
    given = parser.parse_args()
    chosen = parse_settings(given.settings)
    if given.data is None:
        raise InputError("--data: expected a directory with the data set sia, or STRETTO_DATA")
    files = given.files.split(",")
    families = sorted({file.split("-")[0] for file in files}) if given.families else []
    for costs, settings in (("in place", IN_PLACE), ("restart", {})):
        names = tuple(PARTS) if given.parts and settings else ("sia", "stretto")
        figures = "mean JCT h | p99 h | makespan h | restarts | mean less % | p99 less % | makespan less %"
        print(f"\n| {costs}, {len(files)} files | {figures} |")
        print("|---|---|---|---|---|---|---|---|")
        sia: Outcome | None = None
        for name in names:
            policy, own = PARTS[name]
            own = {**own, **chosen} if policy == "stretto" else own
            of = outcome(given.data, files, policy, {**settings, **own})
            sia = sia or of
            print(of.as_row(name, sia), flush=True)
            for family in families:
                of_family = np.array([file.startswith(family) for file in files])
                row = of.of_files(of_family).as_row(f"{name}, {family}", sia.of_files(of_family))
                print(row, flush=True)


if __name__ == "__main__":
    main()
