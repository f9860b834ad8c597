"""Why UniSched's figures come out otherwise here: its assumptions, switched one at a time."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from stretto.clusters import read_cluster
from stretto.estimate.placement_runtime import iteration_s
from stretto.experiments.causes import (
    NOTHING,
    Figure,
    Series,
    Switch,
    Switched,
    Value,
    switched_runs,
    value_of,
)
from stretto.experiments.reproduction import Bound, Request
from stretto.experiments.spec import RunSpec, set_up
from stretto.experiments.unisched.comparison import (
    BELOW_CHRONUS,
    DENSITIES,
    DENSITY_RATIO,
    LEARNERS_RATIO,
    MINUTE_S,
    MIX_RATIO,
    PER_CENT,
    SEEDS,
    SELECTOR_SPEEDUP,
    TESTBED_FIGURES,
    load_of,
    variants_of_chronus,
)
from stretto.experiments.unisched.estimator import (
    COUNTS,
    MOST_ERROR,
    STOPS,
    WORST_ERROR,
    WORST_MODEL,
    speed_errors,
    stops_with_deadline,
)
from stretto.experiments.unisched.measured import (
    Equation,
    constant_s,
    measured_errors,
    measured_steps_s,
    ring_s,
)
from stretto.experiments.unisched.runs import (
    CLUSTERS,
    DEADLINE_AWARE,
    HELIOS,
    LEARNERS,
    TESTBED,
    USUAL,
    Case,
    best_effort_jct_s,
    draws_of,
    mean_of,
    miss_rate,
    spec_of,
    workloads_of,
)
from stretto.sim.bounds import bounds_of
from stretto.sim.result import Result
from stretto.traces.helios_made import MODELS

SAMPLE = "helios-testbed"
# The first days of arrivals do not fill the table's 960 GPUs, so a third of them stands for a full cluster.
FULL = "gpu8-320"
SLOWEST = "3sigma"  # on the full cluster a simulation of it takes minutes
COMPARED = ("unisched", *DEADLINE_AWARE, *LEARNERS)
OF_FIGURE12 = ("P_MIX1", "H_MIX1")  # for these the text has figures
TESTBED_SWITCHES = (
    Switch("run times are even from 5 to 180 min", made=f"{SAMPLE}-even"),
    Switch("each job asks for one GPU", made=f"{SAMPLE}-single"),
    Switch(
        "both: one GPU each, and no job is profiled", {"policy.profiling": "off"}, made=f"{SAMPLE}-single"
    ),
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
            Figure(f"T[{jobs}]: unisched", "R_slo_percent", missed),
            Figure(f"T[{jobs}]: unisched", "avg_jct_min", took_min),
            Figure(f"T[{jobs}]: unisched", "best_effort_avg_jct_min", took_min),
            Figure(f"T[{jobs}]: unisched", "load", None),
        ]

    def measure(results: Sequence[Result]) -> list[Value]:
        seeds = len(SEEDS)
        return [
            column
            for first in range(0, len(results), seeds)
            for column in _testbed(results[first : first + seeds])
        ]

    rows = switched_runs(request, specs, TESTBED_SWITCHES, measure)
    rows.append(_best_possible(specs))
    return Series(tuple(figures), tuple(rows))


def _testbed(results: Sequence[Result]) -> list[Value]:
    """Of one density, by figure."""
    return [
        value_of([PER_CENT * (miss_rate(result) or 0.0) for result in results]),
        value_of([float(result.jct_s.mean()) / MINUTE_S for result in results]),
        value_of([(best_effort_jct_s(result) or 0.0) / MINUTE_S for result in results]),
        Value(float(np.mean([load_of(result) for result in results]))),
    ]


def _best_possible(specs: Sequence[RunSpec]) -> Switched:
    """What no schedule of these samples can be better than."""
    bounds = [bounds_of(*set_up(spec)) for spec in specs]
    values: list[Value] = []
    for first in range(0, len(bounds), len(SEEDS)):
        of_samples = bounds[first : first + len(SEEDS)]
        missed = value_of([PER_CENT * bound.weighted_deadline_miss_rate for bound in of_samples])
        jct = value_of([bound.avg_jct_s / MINUTE_S for bound in of_samples])
        values += [missed, jct, Value(None), Value(None)]
    return Switched("the best that any schedule could do", "", tuple(values))


def figure7(request: Request) -> Series:
    """Errors of equation 2 by number of GPUs, of other equations, and beside what others measured."""
    cluster = read_cluster(CLUSTERS[USUAL])
    measured = measured_steps_s()

    def on_catalogue(words: str, equation: Equation) -> Switched:
        errors = np.array([speed_errors(model, cluster, equation) for model in MODELS]).mean(axis=0)
        of_worst = speed_errors(WORST_MODEL, cluster, equation)
        return Switched(words, "", tuple(Value(float(each)) for each in (*errors[1:], *of_worst[2:])))

    def on_measured(words: str, equation: Equation) -> list[Switched]:
        if measured is None:
            return []
        errors = measured_errors(measured, equation)
        return [Switched(words, "", (*map(Value, errors), Value(None), Value(None)))]

    rows = [
        on_catalogue(NOTHING, iteration_s),
        on_catalogue("gradients go round a ring: 2 (n - 1) / n in the place of n - 1", ring_s),
        on_catalogue("gradients take as long on any number of GPUs", constant_s),
        *on_measured("iterations measured by Chronus's authors, in the place of the catalogue", iteration_s),
        *on_measured("both: measured iterations, and a ring", ring_s),
    ]
    figures = [Figure(f"a {count} GPUs", "mean_error", MOST_ERROR, "at most") for count in COUNTS[1:]]
    figures += [Figure(f"b BERT, {count} GPUs", "error", WORST_ERROR, "at most") for count in COUNTS[2:]]
    return Series(tuple(figures), tuple(rows))


def figure8(request: Request) -> Series:
    """How often jobs with deadlines are stopped on the first draw of each made workload of Helios."""
    specs = [spec_of(request, Case(name, name, "unisched", {})) for name in HELIOS]
    switches = (
        Switch("leases of deadlines are not put off", {"policy.puts_off": "false"}),
        Switch("cycles as long as ticks", {"policy.deadline_lease_s": "300"}),
        Switch("no job is profiled", {"policy.profiling": "off"}),
        Switch("jobs that fit the clock but no lease are lost", {"policy.by_clock": "false"}),
        Switch("suspensions are not expected", {"policy.suspensions": "false"}),
        Switch("the smaller cluster", cluster=CLUSTERS["C96"]),
        Switch("1.6 times the jobs", recipe={"density": "1.6"}),
    )
    rows = switched_runs(request, specs, switches, _stops)
    doubled = tuple(Value(None if each.ours is None else 2 * each.ours) for each in rows[0].values)
    rows.append(Switched("a suspension and its resumption count as two", "", doubled))
    figures = (
        Figure("jobs with deadlines, over the workloads", "least", STOPS[0]),
        Figure("jobs with deadlines, over the workloads", "most", STOPS[1]),
    )
    return Series(figures, tuple(rows))


def _stops(results: Sequence[Result]) -> list[Value]:
    stops = [stops_with_deadline(result) or 0.0 for result in results]
    return [Value(min(stops)), Value(max(stops))]


def figure6(request: Request) -> Series:
    """Misses of UniSched beside those of Themis and of Hydra on one mixed workload."""
    workload = "P_MIX2" if request.data is not None else "H_MIX2"
    specs = [spec_of(request, Case(name, workload, name, {})) for name in ("unisched", "themis", "hydra")]
    switches = (
        Switch("durations are told exactly", {"sim.duration_error": "0"}),
        Switch("no job is profiled", {"policy.profiling": "off"}, only="unisched"),
        Switch(
            "ticks and cycles of 1 min",
            {"policy.best_effort_lease_s": "60", "policy.deadline_lease_s": "60"},
            only="unisched",
        ),
        Switch("cycles as long as ticks", {"policy.deadline_lease_s": "300"}, only="unisched"),
        Switch("leases of deadlines are not put off", {"policy.puts_off": "false"}, only="unisched"),
        Switch("no job stops by performance", recipe={"performance": "0"}),
        Switch("Themis holds auctions, as in its own paper", {"policy.auction": "true"}, only="themis"),
        Switch("the smaller cluster", cluster=CLUSTERS["C96"]),
    )

    def measure(results: Sequence[Result]) -> list[Value]:
        ours, themis, hydra = (miss_rate(result) or 0.0 for result in results)
        return [
            *(Value(theirs / ours if ours else None) for theirs in (themis, hydra)),
            Value(ours),
            Value(themis),
        ]

    figures = (
        Figure(f"{workload}: themis over unisched", "R_slo", LEARNERS_RATIO[0], "at least"),
        Figure(f"{workload}: hydra over unisched", "R_slo", MIX_RATIO[0], "at least"),
        Figure(f"{USUAL} {workload}: unisched", "R_slo", None),
        Figure(f"{USUAL} {workload}: themis", "R_slo", None),
    )
    return Series(figures, tuple(switched_runs(request, specs, switches, measure)))


def figure6_density(request: Request) -> Series:
    """Least and most of others' misses over UniSched's, at each density, and its own misses at two."""
    cases = [
        Case(f"{density:.0%}: {policy}", "H_MIX2", policy, {}, recipe=f"density={density:g}")
        for density in DENSITIES
        for policy in COMPARED
    ]
    specs = [spec_of(request, draw) for case in cases for draw in draws_of(request, case)]
    ours = "unisched"
    switches = (
        Switch("durations are told exactly", {"sim.duration_error": "0"}, only=ours),
        Switch("no job is profiled", {"policy.profiling": "off"}, only=ours),
        Switch("leases of deadlines are not put off", {"policy.puts_off": "false"}, only=ours),
    )

    def misses(results: Sequence[Result]) -> list[Value]:
        """Of each density, of each policy: means over draws."""
        draws = len(specs) // len(cases)
        of_cases = (results[first : first + draws] for first in range(0, len(results), draws))
        return [Value(mean_of(miss_rate, each)) for each in of_cases]

    by_case = switched_runs(request, specs, switches, misses)
    rows = [replace(row, values=_over_densities(row.values, COMPARED)) for row in by_case]
    without = tuple(policy for policy in COMPARED if policy != SLOWEST)
    pairs = zip(cases, by_case[0].values, strict=True)
    of_others = [value for case, value in pairs if case.policy != SLOWEST]
    rows.append(Switched("3Sigma is left out", "", _over_densities(of_others, without)))
    full = Switch(f"3Sigma is left out, on {FULL.rpartition('-')[2]} GPUs in the place of 960", cluster=FULL)
    of_full = misses(request.run([full.of(spec) for spec in specs if spec.policy != SLOWEST]))
    rows.append(Switched(full.what, full.how, _over_densities(of_full, without)))

    ratio = f"R_slo: {', '.join(COMPARED[1:])} over unisched"
    figures = [
        Figure(ratio, metric, paper) for metric, paper in zip(("least", "most"), DENSITY_RATIO, strict=True)
    ]
    figures += [Figure(case.name, "R_slo", None) for case in (cases[0], cases[-len(COMPARED)])]
    return Series(tuple(figures), tuple(rows))


def _over_densities(values: Sequence[Value], policies: Sequence[str]) -> tuple[Value, ...]:
    """Least and most over the first policy's misses, then its own at the least and the highest density."""
    missed = np.array([value.ours or 0.0 for value in values]).reshape(-1, len(policies))
    ratios = [each / ours for ours, *others in missed.tolist() if ours for each in others]
    limits = (min(ratios, default=None), max(ratios, default=None))
    return tuple(map(Value, (*limits, float(missed[0, 0]), float(missed[-1, 0]))))


def figure12(request: Request) -> Series:
    """By how much a variant misses less than Chronus, and ends best effort sooner, on two workloads."""
    workloads, variants = workloads_of(request, OF_FIGURE12), variants_of_chronus()
    specs = [
        spec_of(request, Case(f"{workload}: {name}", workload, policy, settings))
        for workload in workloads
        for name, (policy, settings) in variants.items()
    ]
    switches = (
        Switch("Chronus knows durations at once", {"policy.profiling_s": "0"}, only="chronus"),
        Switch("Chronus sets 64 GPUs aside for profiles", {"policy.profiling_gpus": "64"}, only="chronus"),
        Switch("half of the arrivals", recipe={"density": "0.5"}),
    )

    def measure(results: Sequence[Result]) -> list[Value]:
        values = []
        for first in range(0, len(results), len(variants)):
            each = dict(zip(variants, results[first : first + len(variants)], strict=True))
            missed = {name: miss_rate(result) or 0.0 for name, result in each.items()}
            jct_s = {name: best_effort_jct_s(result) for name, result in each.items()}
            values.append(Value(missed["chronus"]))
            values += [Value(missed["chronus"] - missed[name]) for name in BELOW_CHRONUS]
            chronus_s, selector_s = jct_s["chronus"], jct_s["chronus + selector"]
            values.append(Value(chronus_s / selector_s if chronus_s and selector_s else None))
        return values

    figures = []
    for workload in workloads:
        figures.append(Figure(f"{workload}: chronus", "R_slo", None))
        for name, (most, named) in BELOW_CHRONUS.items():
            bound: Bound = "" if named == workload else "at most"
            figures.append(Figure(f"{workload}: {name}", "R_slo_below_chronus", most, bound))
        figures.append(
            Figure(f"{workload}: chronus + selector", "best_effort_speedup", SELECTOR_SPEEDUP[1], "at most")
        )
    return Series(tuple(figures), tuple(switched_runs(request, specs, switches, measure)))
