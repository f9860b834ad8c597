"""Why UniSched's figures come out otherwise here: its assumptions, switched one at a time."""

from collections.abc import Sequence

from stretto.experiments.causes import Figure, Series, Switch, Switched, Value, switched_runs, value_of
from stretto.experiments.reproduction import Request
from stretto.experiments.spec import RunSpec, set_up
from stretto.experiments.unisched.comparison import (
    MINUTE_S,
    PER_CENT,
    SEEDS,
    TESTBED_FIGURES,
)
from stretto.experiments.unisched.runs import TESTBED, Case, best_effort_jct_s, miss_rate, spec_of
from stretto.sim.bounds import bounds_of
from stretto.sim.result import Result

SAMPLE = "helios-testbed"
TESTBED_SWITCHES = (
    Switch("run times are even from 5 to 180 min", made=f"{SAMPLE}-even"),
    Switch("each job asks for one GPU", made=f"{SAMPLE}-single"),
    Switch("durations are told exactly", {"sim.duration_error": "0"}),
    Switch("no job stops by performance", recipe={"performance": "0"}),
    Switch("no job is profiled", {"policy.profiling": "off"}),
    Switch("a profiling run trains nothing", {"sim.profiling_trains": "false"}),
    Switch("cycles as long as ticks", {"policy.deadline_lease_s": "300"}),
    Switch(
        "ticks and cycles of 1 min", {"policy.best_effort_lease_s": "60", "policy.deadline_lease_s": "60"}
    ),
    Switch("jobs that fit the clock but no lease are lost", {"policy.by_clock": "false"}),
    Switch("leases are rounded to the nearest", {"policy.whole_leases": "false"}),
    Switch("leases of deadlines are not put off", {"policy.puts_off": "false"}),
    Switch("suspensions are not expected", {"policy.suspensions": "false"}),
    Switch("suspensions cost nothing", {"sim.restart_s": "0", "sim.restart_per_gpu_s": "0"}),
)


def table3(request: Request) -> Series:
    """Table III on the testbed: misses and completion times at both densities, and what the sample allows."""
    runs = [
        Case("", f"{SAMPLE}:jobs={jobs},seed={seed}", "unisched", {}, TESTBED)
        for jobs in TESTBED_FIGURES
        for seed in SEEDS
    ]
    specs = [spec_of(request, case) for case in runs]
    figures = []
    for jobs, (missed, took_min) in TESTBED_FIGURES.items():
        figures += [
            Figure(f"T[{jobs}]", "R_slo_percent", missed),
            Figure(f"T[{jobs}]", "avg_jct_min", took_min),
            Figure(f"T[{jobs}]", "best_effort_avg_jct_min", took_min),
        ]

    def measure(results: Sequence[Result]) -> list[list[float]]:
        seeds = len(SEEDS)
        return [
            column
            for first in range(0, len(results), seeds)
            for column in _testbed(results[first : first + seeds])
        ]

    rows = switched_runs(request, specs, TESTBED_SWITCHES, measure)
    rows.append(_best_possible(specs))
    notes = (
        "Table III calls its second column the mean completion time of jobs. Section IV-C defines it over "
        "best-effort jobs, so both are shown",
        "The last row is a bound: no schedule misses less on these samples, whatever it knows",
    )
    return Series(tuple(figures), tuple(rows), notes)


def _testbed(results: Sequence[Result]) -> list[list[float]]:
    """Of one density, by figure and made sample."""
    return [
        [PER_CENT * (miss_rate(result) or 0.0) for result in results],
        [float(result.jct_s.mean()) / MINUTE_S for result in results],
        [(best_effort_jct_s(result) or 0.0) / MINUTE_S for result in results],
    ]


def _best_possible(specs: Sequence[RunSpec]) -> Switched:
    """What no schedule of these samples can be better than."""
    bounds = [bounds_of(*set_up(spec)) for spec in specs]
    values: list[Value] = []
    for first in range(0, len(bounds), len(SEEDS)):
        of_samples = bounds[first : first + len(SEEDS)]
        missed = value_of([PER_CENT * bound.weighted_deadline_miss_rate for bound in of_samples])
        jct = value_of([bound.avg_jct_s / MINUTE_S for bound in of_samples])
        values += [missed, jct, Value(None)]
    return Switched("the best that any schedule could do", "", tuple(values))
