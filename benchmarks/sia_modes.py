"""What profiles are worth to Sia (section 5.7 of its paper), one assumption at a time.

    python benchmarks/sia_modes.py [--data DIR] [--traces 5]

Each row compares Bootstrap with No-Prof, or with the oracle, on the same workloads of 160 jobs. They have 64
GPUs of three types. Real ones are Helios's, from Sia's authors; DIR is laid out as docs/traces.md says, and
taken from $STRETTO_DATA where it is not given. Without it only made ones are run. A reduction is one less
Bootstrap's mean completion time over the other's. Behind it stands half of Student's 95 % interval.

The paper prints 30 % beside No-Prof, and 8 % more than the oracle. It does not say what a job without a
profile is believed to do on a type that it has not tried. `Untried` lists four beliefs.
"""

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from pathlib import Path

import numpy as np

from stretto.estimate.estimators import OnlineGoodput
from stretto.estimate.throughput import Mode
from stretto.experiments.reproduction import rows_over_seeds
from stretto.experiments.spec import RunSpec, set_up
from stretto.model import Configurations, Evidence, InputError, Snapshot, Speeds, TrainingLimits
from stretto.sim.run import Setup, simulate

PAPERS_WORLD = {
    "sim.fidelity": "paper",
    "policy.first_type": "profiled",
    "policy.decimals": "-1",
    "estimate.fit": "best",
    "estimate.reference": "most",
}


class Untried(StrEnum):
    """What No-Prof believes of a type that a job has not tried. Of adaptive jobs only."""

    PERFECT = "as fast as those tried, scales perfectly"  # `estimate.mode=no-prof`
    MEASURED = "as fast as those tried, scales as they do"
    SMALLEST = "the same as the first, on one GPU"  # more only once one was tried
    NEVER = "nothing: a job stays on its first type"


@dataclass(frozen=True)
class Unprofiled(OnlineGoodput):
    """No-Prof under another belief."""

    untried: Untried = Untried.PERFECT

    def estimate(self, snapshot: Snapshot, configurations: Configurations) -> Speeds:
        """As `OnlineGoodput` has it, less what the belief forbids."""
        if self.untried is Untried.MEASURED:
            stripped = [_unprofiled(evidence) for evidence in snapshot.jobs.evidence]
            snapshot = replace(snapshot, jobs=replace(snapshot.jobs, known_evidence=stripped))
        speeds = super().estimate(snapshot, configurations)
        if self.untried in (Untried.SMALLEST, Untried.NEVER):
            never_ran_there = (speeds.observed_gpus == 0)[:, configurations.kind]
            too_many = (configurations.gpus > 1) | (self.untried is Untried.NEVER)
            speeds.per_s[speeds.modelled[:, None] & never_ran_there & too_many] = np.nan
        return speeds


@dataclass(frozen=True)
class OtherBelief(Setup):
    """A simulation whose jobs have no profile."""

    untried: Untried = Untried.PERFECT

    def make_estimator(self) -> OnlineGoodput:
        """The usual one with the belief."""
        usual = super().make_estimator()
        assert isinstance(usual, OnlineGoodput), "Sia is served by this estimator"
        # Bootstrapping from no profile is what scales an untried type as those that were tried.
        mode = Mode.BOOTSTRAP if self.untried is Untried.MEASURED else Mode.NO_PROF
        return Unprofiled(mode, usual.reference, usual.fit, untried=self.untried)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", default=os.environ.get("STRETTO_DATA", ""), help="public data sets")
    parser.add_argument("--traces", type=int, default=5, help="workloads for each row")
    options = parser.parse_args()
    made = [f"synthetic-sia:jobs=160,hours=8,seed={100 + number}" for number in range(options.traces)]
    worlds = [("made", "", made)]
    if options.data:
        folder = Path(options.data) / "sia"
        if not folder.is_dir():
            raise SystemExit(
                str(InputError(f"--data {options.data}: expected a folder with the data set sia"))
            )
        files = sorted(map(str, (folder / "workloads" / "helios").glob("workload-*.csv")))
        worlds.insert(0, ("real", str(folder / "profiles"), files[: options.traces]))
    for name, profiles, traces in worlds:
        print_world(name, profiles, traces)


def print_world(name: str, profiles: str, traces: Sequence[str]) -> None:
    """Every row on some workloads."""
    ways: dict[str, Mapping[str, str]] = {"as sia-modes": {}}
    if profiles:
        ways |= {
            "first type by profile": {"policy.first_type": "profiled"},
            "most observed type stands in": {"estimate.reference": "most"},
            "world as the paper": PAPERS_WORLD,
        }
    for way, settings in ways.items():
        bootstrap = mean_jcts_h(profiles, traces, {**settings, "estimate.mode": "bootstrap"})
        oracle = mean_jcts_h(profiles, traces, {**settings, "estimate.mode": "oracle"})
        print_row(f"{name}, {way}: oracle", bootstrap, oracle)
        for untried in Untried:
            other = mean_jcts_h(profiles, traces, settings, untried)
            print_row(f"{name}, {way}: {untried}", bootstrap, other)
        charged = mean_jcts_h(profiles, traces, {**settings, "sim.profile_s": "120"})
        unprofiled = mean_jcts_h(profiles, traces, settings, Untried.PERFECT)
        print_row(f"{name}, {way}: perfectly, profiles take 120 s", charged, unprofiled)


@cache
def _mean_jct_h(spec_words: tuple[str, str, tuple[tuple[str, str], ...]], untried: Untried | None) -> float:
    trace, profiles, settings = spec_words
    workload, setup = set_up(RunSpec("sia-hetero-64", trace, "sia", profiles, settings=dict(settings)))
    if untried is not None:
        setup = OtherBelief(**vars(setup), untried=untried)
    return float(simulate(workload, setup).jct_s.mean()) / 3600


def mean_jcts_h(
    profiles: str, traces: Sequence[str], settings: Mapping[str, str], untried: Untried | None = None
) -> list[float]:
    """The mean completion time on each workload."""
    return [_mean_jct_h((trace, profiles, tuple(sorted(settings.items()))), untried) for trace in traces]


def print_row(title: str, bootstrap: Sequence[float], other: Sequence[float]) -> None:
    less = [1 - ours / theirs for ours, theirs in zip(bootstrap, other, strict=True)]
    mean, *half = (row.ours for row in rows_over_seeds("", "", None, less))
    assert mean is not None
    spread = f" ± {half[0]:.1%}" if half else ""
    print(
        f"{title:80} {np.mean(bootstrap):6.3f} h beside {np.mean(other):6.3f} h {mean:8.1%}{spread}",
        flush=True,
    )


@cache
def _without_profile(limits: TrainingLimits) -> TrainingLimits:
    return replace(limits, single_per_s=np.full_like(limits.single_per_s, np.nan), single_ratio=None)


def _unprofiled(evidence: Evidence | None) -> Evidence | None:
    return None if evidence is None else replace(evidence, limits=_without_profile(evidence.limits))


if __name__ == "__main__":
    main()
