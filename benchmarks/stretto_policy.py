"""The policy `stretto` beside Sia on the workloads of Sia's authors, and each of its parts left out.

    python benchmarks/stretto_policy.py [--data DIR] [--files philly-1,helios-1] [--parts]

160 jobs each, on 64 GPUs of three types, in the world of Sia's published simulator. DIR is laid out as
docs/traces.md says, and taken from $STRETTO_DATA where it is not given. A reduction is one less the ratio of
two means over the files. Behind it stands half of Student's 95 % interval over them. *In place* a change of
size costs 1 s, else it is a restart.

The policy was worked out on philly-1 and helios-1. The other files were run when it was done.
"""

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.special import stdtrit

from stretto.experiments.spec import RunSpec, set_up
from stretto.model import FloatArray, InputError
from stretto.sim.run import simulate

FILES = tuple(f"{family}-{number}" for number in range(1, 6) for family in ("philly", "helios"))
IN_PLACE = {"sim.resize_s": "1"}
PARTS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "sia": ("sia", {}),
    "stretto": ("stretto", {}),
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


def outcome(data: Path, files: Sequence[str], policy: str, settings: Mapping[str, str]) -> Outcome:
    """Simulate a policy on every file."""
    rows = []
    for name in files:
        family, number = name.rsplit("-", 1)
        trace = data / "sia" / "workloads" / family / f"workload-{number}.csv"
        profiles = data / "sia" / "profiles"
        spec = RunSpec("sia-hetero-64", str(trace), policy, str(profiles), settings=settings)
        result = simulate(*set_up(spec))
        jct_h = np.sort(result.jct_s) / 3600
        tail = jct_h[int(0.99 * len(jct_h))]  # as Sia's authors take it
        rows.append((jct_h.mean(), tail, result.completed_s.max() / 3600, result.restarts.mean()))
    return Outcome(*np.array(rows).T)


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
    given = parser.parse_args()
    if given.data is None:
        raise InputError("--data: expected a directory with the data set sia, or STRETTO_DATA")
    files = given.files.split(",")
    for costs, settings in (("in place", IN_PLACE), ("restart", {})):
        names = tuple(PARTS) if given.parts and settings else ("sia", "stretto")
        figures = "mean JCT h | p99 h | makespan h | restarts | mean less than Sia's"
        print(f"\n| {costs}, {len(files)} files | {figures} |")
        print("|---|---|---|---|---|---|")
        sia: Outcome | None = None
        for name in names:
            policy, own = PARTS[name]
            of = outcome(given.data, files, policy, {**settings, **own})
            sia = sia or of
            less = 100 * (1 - of.mean_h.mean() / sia.mean_h.mean())
            spread = 100 * half_interval(1 - of.mean_h / sia.mean_h)
            print(
                f"| {name} | {of.mean_h.mean():.3f} | {of.p99_h.mean():.2f} | {of.makespan_h.mean():.2f} | "
                f"{of.restarts.mean():.2f} | {less:.1f} % ± {spread:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
