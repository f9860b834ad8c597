"""What each part of `stretto` is worth on the mixed workload, and what errors and costs do to it.

At two loads of `one-for-all`: where few jobs wait and where many do. Of parts of the policy only its own runs
differ. Errors of what policies are told, and costs of changes, are those of a world, so that Sia's policy
has them, too. It is simulated at half load, where that takes seconds.
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

LOADS = ("half load", "overload")
BESIDE, BESIDE_AT = "sia", "half load"
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
    figures: list[Figure] = []
    for load in LOADS:
        figures += [Figure(f"{load}, {OURS}: {kind}", metric, None) for kind, metric in OF_CLASSES.items()]
        figures += [
            Figure(f"{load}, {row}: {ALL}", JCT, None) for row in (OURS, f"{OURS} over itself unswitched")
        ]
    figures += [Figure(f"{BESIDE_AT}, {row}: {ALL}", JCT, None) for row in (BESIDE, f"{OURS} over {BESIDE}")]
    unchanged: dict[str, list[float]] = {}  # by load and seed; the table's own runs are measured first

    def measure(results: Sequence[Result]) -> list[Value]:
        each = [figures_of(result) for result in results]
        values: list[Value] = []
        jct_s: dict[str, list[float]] = {}
        for place, load in enumerate(LOADS):
            ours = each[place * len(seeds) : (place + 1) * len(seeds)]
            values += [value_of([of[kind, metric] for of in ours]) for kind, metric in OF_CLASSES.items()]
            jct_s[load] = [of[ALL, JCT] for of in ours]
            values += [
                value_of(jct_s[load]),
                value_of(_ratios(jct_s[load], unchanged.setdefault(load, jct_s[load]))),
            ]
        beside = [of[ALL, JCT] for of in each[len(LOADS) * len(seeds) :]]
        return [*values, value_of(beside), value_of(_ratios(jct_s[BESIDE_AT], beside))]

    with TemporaryDirectory(prefix="stretto-mixed-") as folder:
        queues = Path(folder) / "queues.yaml"
        queues.write_text(QUEUES, encoding="utf-8")
        runs = [*((OURS, load) for load in LOADS), (BESIDE, BESIDE_AT)]
        specs = [spec_of(policy, JOBS[load], seed, queues) for policy, load in runs for seed in seeds]
        return Series(tuple(figures), tuple(switched_runs(request, specs, (*PARTS, *WORLDS), measure)))


def _ratios(values: Sequence[float], others: Sequence[float]) -> list[float]:
    return [value / other for value, other in zip(values, others, strict=True)]
