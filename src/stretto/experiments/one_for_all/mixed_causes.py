"""What each part of `stretto` is worth on the mixed workload, and what errors and costs do to it.

At half load of `one-for-all`. Of parts of the policy only its own runs differ. Errors of what policies are
told, and costs of changes, are those of a world, so that Sia's policy has them, too.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from stretto.experiments.causes import Figure, Series, Switch, Value, switched_runs, value_of
from stretto.experiments.draws import seeds_of
from stretto.experiments.one_for_all.mixed import ALL, JOBS, OF_CLASSES, QUEUES, SEEDS, figures_of, spec_of
from stretto.experiments.one_for_all.parts import OURS, PARTS
from stretto.experiments.reproduction import Request
from stretto.sim.result import Result

LOAD, BESIDE = "half load", "sia"  # where a simulation takes seconds
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
    figures = [
        *(Figure(f"{LOAD}, {OURS}: {kind}", metric, None) for kind, metric in OF_CLASSES.items()),
        Figure(f"{LOAD}, {OURS}: {ALL}", JCT, None),
        Figure(f"{LOAD}, {OURS} over itself unswitched: {ALL}", JCT, None),
        Figure(f"{LOAD}, {BESIDE}: {ALL}", JCT, None),
        Figure(f"{LOAD}, {OURS} over {BESIDE}: {ALL}", JCT, None),
    ]
    unchanged: list[float] = []  # by seed; the table's own runs are measured first

    def measure(results: Sequence[Result]) -> list[Value]:
        ours = [figures_of(result) for result in results[: len(seeds)]]
        beside = [figures_of(result)[ALL, JCT] for result in results[len(seeds) :]]
        jct_s = [each[ALL, JCT] for each in ours]
        if not unchanged:
            unchanged.extend(jct_s)
        of_classes = [value_of([each[kind, metric] for each in ours]) for kind, metric in OF_CLASSES.items()]
        return [
            *of_classes,
            value_of(jct_s),
            value_of([now / before for now, before in zip(jct_s, unchanged, strict=True)]),
            value_of(beside),
            value_of([ours_s / other_s for ours_s, other_s in zip(jct_s, beside, strict=True)]),
        ]

    with TemporaryDirectory(prefix="stretto-mixed-") as folder:
        queues = Path(folder) / "queues.yaml"
        queues.write_text(QUEUES, encoding="utf-8")
        specs = [spec_of(policy, JOBS[LOAD], seed, queues) for policy in (OURS, BESIDE) for seed in seeds]
        return Series(tuple(figures), tuple(switched_runs(request, specs, (*PARTS, *WORLDS), measure)))
