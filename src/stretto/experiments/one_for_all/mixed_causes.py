"""What each part of `stretto` is worth on the mixed workload, and what errors and costs do to it.

All is switched at two loads of `one-for-all`: where few jobs wait and where many do. Where a part is left out
only the policy's own runs differ. Errors of what policies are told, and costs of changes, are those of a
world, so that Sia's policy has them, too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from stretto.experiments.causes import (
    Figure,
    Series,
    Switch,
    Switched,
    Value,
    switched_runs,
    value_of,
)
from stretto.experiments.draws import seeds_of
from stretto.experiments.one_for_all.mixed import ALL, JOBS, OF_CLASSES, QUEUES, SEEDS, figures_of, spec_of
from stretto.experiments.one_for_all.parts import OURS, PARTS
from stretto.experiments.reproduction import Request
from stretto.sim.result import Result

LOADS = "half load", "overload"
BESIDE = "sia"
JCT = "avg_jct_s"


def told_with(error: str) -> Mapping[str, str]:
    """Standard deviation of work and durations, as policies are told them."""
    return {"sim.work_error": error, "sim.duration_error": error}


WORLDS = (
    Switch("work and durations are told exactly", told_with("0")),
    Switch("they are told with an error of 50 %", told_with("0.5")),
    Switch("they are told with an error of 100 %", told_with("1")),
    Switch("one job in twenty is said to be a tenth as long as it is", {"sim.liars": "0.05"}),
    Switch("speeds are measured with an error of 30 %", {"sim.speed_error": "0.3"}),
    Switch("a change of size takes 0.1 s", {"sim.resize_s": "0.1"}),
    Switch("a change of size takes 10 s", {"sim.resize_s": "10"}),
    Switch("a change of size takes 60 s", {"sim.resize_s": "60"}),
)


def one_for_all(request: Request) -> Series:
    """Every class of jobs, with one part of the policy or of the world switched at a time."""
    seeds = seeds_of(request, SEEDS)
    with TemporaryDirectory(prefix="stretto-mixed-") as folder:
        queues = Path(folder) / "queues.yaml"
        queues.write_text(QUEUES, encoding="utf-8")

        def rows_at(load: str) -> list[Switched]:
            specs = [spec_of(policy, JOBS[load], seed, queues) for policy in (OURS, BESIDE) for seed in seeds]
            return switched_runs(request, specs, (*PARTS, *WORLDS), _Measure(len(seeds)))

        few_wait, many_wait = (rows_at(load) for load in LOADS)
    return Series(
        tuple(figure for load in LOADS for figure in _figures(load)),
        tuple(
            replace(few, values=(*few.values, *many.values))
            for few, many in zip(few_wait, many_wait, strict=True)
        ),
    )


def _figures(load: str) -> list[Figure]:
    rows = (OURS, f"{OURS} over itself unswitched", BESIDE, f"{OURS} over {BESIDE}")
    of_classes = [Figure(f"{load}, {OURS}: {kind}", metric, None) for kind, metric in OF_CLASSES.items()]
    return [*of_classes, *(Figure(f"{load}, {row}: {ALL}", JCT, None) for row in rows)]


class _Measure:
    """From results of ours, a made workload each, and maybe as many of the policy beside it, to figures."""

    def __init__(self, workloads: int) -> None:
        self.workloads = workloads
        self.unchanged_s: list[float] = []  # the table's own runs are measured first

    def __call__(self, results: Sequence[Result]) -> list[Value]:
        each = [figures_of(result) for result in results]
        ours, beside_s = each[: self.workloads], [of[ALL, JCT] for of in each[self.workloads :]]
        jct_s = [of[ALL, JCT] for of in ours]
        self.unchanged_s = self.unchanged_s or jct_s
        values = [value_of([of[kind, metric] for of in ours]) for kind, metric in OF_CLASSES.items()]
        values += [value_of(jct_s), value_of(_ratios(jct_s, self.unchanged_s))]
        return [*values, value_of(beside_s), value_of(_ratios(jct_s, beside_s))]


def _ratios(values: Sequence[float], others: Sequence[float]) -> list[float]:
    return [value / other for value, other in zip(values, others, strict=True)]
