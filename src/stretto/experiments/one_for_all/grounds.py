"""One policy beside each specialist on the specialist's own ground: the table, and its parts left out.

A ground has cases: a workload and a cluster of a paper, simulated as that paper's tables are. A case has
samples: recorded files, or draws of a made workload. A figure is its mean over samples. *Behind* is by how
much the policy `stretto` is worse than the best of those that it is held against; 0 is: it is not.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from stretto.experiments.causes import Figure, Series, Value, switched_runs, value_of
from stretto.experiments.one_for_all.mixed import percent_behind
from stretto.experiments.one_for_all.parts import OURS, PARTS
from stretto.experiments.reproduction import Input, Made, Request, Row, rows_over_seeds
from stretto.experiments.spec import RunSpec
from stretto.sim.result import Result

Figures = Mapping[str, float]  # by metric: the less the better


@dataclass(frozen=True)
class Case:
    """One workload and cluster of a paper, and the policies that `stretto` is held against there."""

    name: str
    beside: Sequence[str]
    samples: Callable[[str], Sequence[RunSpec]]  # a policy's simulations, one for each sample

    @property
    def policies(self) -> Sequence[str]:
        """All that are simulated."""
        return (*self.beside, OURS)


@dataclass(frozen=True)
class Ground:
    """The evaluation of one paper."""

    cases: Callable[[Request, Path], Sequence[Case]]  # Path: for files that only these runs need
    figures: Callable[[Result], Figures]
    smallest: Mapping[str, float]  # what is judged; two figures that are below it count as equal
    inputs: Callable[[Request], Sequence[Input]]
    notes: Sequence[str]
    without: Sequence[str] = ()  # the cases in which parts are left out; none: in all of them

    def table(self, request: Request) -> Made:
        """Every figure of every policy, and how far `stretto` is behind the best of the others."""
        rows: list[Row] = []
        with TemporaryDirectory(prefix="stretto-ground-") as folder:
            cases = self.cases(request, Path(folder))
            specs = {(case.name, policy): case.samples(policy) for case in cases for policy in case.policies}
            # Cases may share samples.
            different = {repr(spec): spec for samples in specs.values() for spec in samples}
            results = dict(zip(different, request.run(list(different.values())), strict=True))
            figures = {
                key: [self.figures(results[repr(spec)]) for spec in samples] for key, samples in specs.items()
            }
        for case in cases:
            rows += self.rows_of(case, {policy: figures[case.name, policy] for policy in case.policies})
        notes = [
            "means over samples, which are recorded files or draws of a made workload; plus_minus is half of "
            "Student's 95 % interval over them",
            "less_percent: one less the ratio of two such means, ours over the other's",
            "behind: by how many per cent our mean is above the best of the others; 0: it is not",
            *(f"{metric}: less than {least:g} is none" for metric, least in self.smallest.items() if least),
            *self.notes,
        ]
        return self.inputs(request), rows, notes

    def rows_of(self, case: Case, figures: Mapping[str, Sequence[Figures]]) -> list[Row]:
        """The rows of one case; figures: by policy, one for each sample."""
        rows: list[Row] = []
        for policy, samples in figures.items():
            for metric in samples[0]:
                values = [each[metric] for each in samples]
                if np.isfinite(values).all():
                    rows += rows_over_seeds(f"{case.name}, {policy}", metric, None, values)
        ours = figures[OURS]
        for other in case.beside:
            for metric in self.smallest:
                rows += less_than(f"{case.name}, {OURS} beside {other}", metric, ours, figures[other])
        for metric, smallest in self.smallest.items():
            mean = {policy: float(np.mean([each[metric] for each in of])) for policy, of in figures.items()}
            if np.isfinite(list(mean.values())).all():
                best = min(mean[policy] for policy in case.beside)
                behind = percent_behind(mean[OURS], best, smallest)
                rows.append(Row(f"{case.name}, {OURS}: {metric}", "behind_percent", None, behind))
        return rows

    def causes(self, request: Request) -> Series:
        """The policy `stretto` with one of its parts left out at a time; the others are not run."""
        with TemporaryDirectory(prefix="stretto-ground-") as folder:
            cases = [
                case
                for case in self.cases(request, Path(folder))
                if not self.without or case.name in self.without
            ]
            samples = [case.samples(OURS) for case in cases]
            unchanged: list[list[Figures]] = []  # the table's own runs are measured first
            figures = [
                Figure(f"{case.name}, {what}", metric, None)
                for case in cases
                for metric in self.smallest
                for what in (OURS, f"{OURS} over itself unswitched")
            ]

            def measure(results: Sequence[Result]) -> list[Value]:
                each = iter(results)
                now = [[self.figures(next(each)) for _ in specs] for specs in samples]
                if not unchanged:
                    unchanged.extend(now)
                return [
                    value
                    for before, of_case in zip(unchanged, now, strict=True)
                    for metric in self.smallest
                    for value in _value_and_ratio(before, of_case, metric)
                ]

            specs = [spec for of_case in samples for spec in of_case]
            return Series(tuple(figures), tuple(switched_runs(request, specs, PARTS, measure)))


def less_than(row: str, metric: str, ours: Sequence[Figures], other: Sequence[Figures]) -> list[Row]:
    """By how many per cent our mean is less, with half of the interval of it over samples.

    Nothing where a figure of the other is 0 in some sample, or does not apply.
    """
    own = np.array([each[metric] for each in ours])
    against = np.array([each[metric] for each in other])
    if not (np.isfinite(own).all() and np.isfinite(against).all() and (against > 0).all()):
        return []
    less = 100.0 * (1.0 - own.mean() / against.mean())
    of_samples = (100.0 * (1.0 - own / against)).tolist()
    halves = rows_over_seeds(row, f"{metric}_less_percent", None, of_samples)[1:]
    return [Row(row, f"{metric}_less_percent", None, float(less)), *halves]


def _value_and_ratio(before: Sequence[Figures], now: Sequence[Figures], metric: str) -> list[Value]:
    """A figure, and what it is over that with nothing switched; none where that is 0 or does not apply."""
    values, former = ([each[metric] for each in samples] for samples in (now, before))
    if not np.isfinite(values).all():
        return [Value(None), Value(None)]
    is_comparable = np.isfinite(former).all() and min(former) > 0
    ratios = [own / of_before for own, of_before in zip(values, former, strict=True)] if is_comparable else []
    return [value_of(values), value_of(ratios) if ratios else Value(None)]
