"""The policy `stretto` beside the policies of four papers, each on the ground of its own paper.

    python benchmarks/stretto_grounds.py GROUND [--data DIR] [--seeds 0,1,2] [--scale 0.01] [--size N]

GROUND is unisched, ones, lyra or cornucopia; `stretto_policy.py` has that of Sia. Everything is simulated as
`stretto reproduce` simulates the paper. Where the paper's policy is told durations with an error, `stretto`
is told work with the same. A row is one seed, the last are means over seeds. Chance is in the made workload
on unisched and ones, in the simulation on lyra, and nowhere on cornucopia: its jobs are recorded.

The policy was worked out on seeds 5 and 6 of unisched, seed 0 of lyra and 320 GPUs of cornucopia.
"""

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from stretto.experiments.cornucopia import comparison as cornucopia
from stretto.experiments.lyra import runs as lyra
from stretto.experiments.ones import comparison as ones
from stretto.experiments.reproduction import Request
from stretto.experiments.spec import RunSpec, run_spec
from stretto.experiments.unisched import runs as unisched

Figures = Mapping[str, float]


@dataclass(frozen=True)
class Asked:
    """What the command line asks for."""

    request: Request
    size: int  # jobs on unisched, GPUs on ones and cornucopia
    seed: int


def on_unisched(asked: Asked, policy: str) -> Figures:
    """Section IV-C: a made workload on 64 GPUs. Deadlines missed, and JCT of jobs without one."""
    told = {"sim.work_error": unisched.ESTIMATE_ERROR} if policy == "stretto" else {}
    workload = f"helios-testbed:jobs={asked.size or 180},seed={asked.seed}"
    case = unisched.Case(policy, workload, policy, told, unisched.TESTBED)
    result = run_spec(unisched.spec_of(asked.request, case))
    return {
        "deadlines missed %": 100 * (unisched.miss_rate(result) or 0.0),
        "JCT without deadline h": (unisched.best_effort_jct_s(result) or np.nan) / 3600,
        "mean JCT h": float(result.jct_s.mean()) / 3600,
        "restarts": float(result.restarts.mean()),
    }


def on_ones(asked: Asked, policy: str) -> Figures:
    """Section 4: an hour of arrivals of the made workload; resizes in place for both."""
    workload = f"{ones.TRACE}:hours=1,seed={asked.seed}"
    result = run_spec(RunSpec(f"ones-{asked.size or 32}", workload, policy, settings=ones.SETTINGS["ones"]))
    return {
        "mean JCT s": float(result.jct_s.mean()),
        "p99 JCT s": float(np.quantile(result.jct_s, 0.99)),
        "mean queue s": float(result.queue_s.mean()),
        "restarts": float(result.restarts.mean()),
    }


def on_lyra(asked: Asked, policy: str) -> Figures:
    """Section 7: nodes of an inference cluster on loan, in the proportions of the paper."""
    with TemporaryDirectory() as folder:
        spec = lyra.spec_of(asked.request, lyra.Scheme(policy, rule="lyra"), Path(folder), asked.seed)
        result = run_spec(replace(spec, window=WINDOW))
        figures = lyra.figures(asked.request, [result])
    names = ("avg_queue_s", "p95_queue_s", "avg_jct_s", "p95_jct_s", "preemption_ratio", "usage_on_loan")
    return {name: figures[name] for name in names}


def on_cornucopia(asked: Asked, policy: str) -> Figures:
    """Section 7: jobs of Philly; those of a quarter of an hour count as interactive."""
    trace = cornucopia.trace_of(asked.request)
    result = run_spec(cornucopia.spec_of(asked.request, asked.size or 640, trace, policy))
    waited_s = result.queue_s[result.requests.interactive[result.done]]
    return {
        "interactive queue s": float(waited_s.mean()),
        "mean JCT h": float(result.jct_s.mean()) / 3600,
        "p99 JCT h": float(np.quantile(result.jct_s, 0.99)) / 3600,
        "preemptions": float(result.history.preemptions),
    }


WINDOW = 0.05  # of the time of Lyra's trace, in which jobs come; chosen: minutes of a core
GROUNDS: Mapping[str, tuple[Callable[[Asked, str], Figures], Sequence[str]]] = {
    "unisched": (on_unisched, ("unisched", "hydra", "stretto")),
    "ones": (on_ones, ("ones", "stretto")),
    "lyra": (on_lyra, ("lyra", "stretto")),
    "cornucopia": (on_cornucopia, ("cornucopia", "chronus", "stretto")),
}


def main() -> None:
    """Print a table of one ground."""
    parser = argparse.ArgumentParser(description="The policy stretto on the grounds of four papers.")
    parser.add_argument("ground", choices=tuple(GROUNDS))
    parser.add_argument("--data", type=Path, default=os.environ.get("STRETTO_DATA"))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--scale", type=float, default=0.01, help="as for stretto reproduce")
    parser.add_argument("--size", type=int, default=0, help="jobs on unisched, GPUs on ones and cornucopia")
    given = parser.parse_args()
    simulate, policies = GROUNDS[given.ground]
    request = Request(Path(given.data) if given.data else None, scale=given.scale)
    by_policy: dict[str, list[Figures]] = {policy: [] for policy in policies}
    for seed in map(int, given.seeds.split(",")):
        for policy in policies:
            figures = simulate(Asked(request, given.size, seed), policy)
            if not any(by_policy.values()):
                print(f"| policy | seed | {' | '.join(figures)} |\n|---|---|{'---|' * len(figures)}")
            by_policy[policy].append(figures)
            print(
                f"| {policy} | {seed} | {' | '.join(f'{each:.3f}' for each in figures.values())} |",
                flush=True,
            )
    for policy, rows in by_policy.items():
        means = np.array([list(each.values()) for each in rows]).mean(axis=0)
        print(f"| {policy} | mean of {len(rows)} | {' | '.join(f'{each:.3f}' for each in means)} |")


if __name__ == "__main__":
    main()
