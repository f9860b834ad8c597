"""Why some of Sia's figures come out otherwise here: assumptions switched one at a time."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from stretto.estimate.other_types import Untried
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
from stretto.experiments.reproduction import Request
from stretto.experiments.sia.comparison import FAIRNESS, TABLE_3, TABLE_4
from stretto.experiments.sia.figures import (
    POLICIES,
    SEEDS,
    SHORTER_BY_RATE,
    SHORTER_THAN_GAVEL,
    SHORTER_THAN_POLLUX,
    TESTBED_HOURS,
    TESTBED_JOBS,
    spec_at,
    testbed_spec,
    testbed_traces,
    traces_at,
)
from stretto.experiments.sia.settings import (
    AHEAD_OF_GAVEL,
    BETTER_THAN_NO_PROF,
    LONGER_WITH_ROUNDS_OF_300_S,
    MIXED,
    MODES,
    WORSE_THAN_ORACLE,
)
from stretto.experiments.sia.tuned import alone_gpu_hours, most_gpu_hours, tuned_jobs, write_workload
from stretto.experiments.sia.workloads import JOBS, PER_TABLE, figures_of, spec_of, traces_of
from stretto.experiments.spec import set_up
from stretto.sim import metrics
from stretto.sim.result import Result

PAPERS_WORLD = {
    "sim.fidelity": "paper",
    "policy.first_type": "profiled",
    "policy.decimals": "-1",
    "estimate.fit": "best",
    "estimate.reference": "most",
}
OF_SIA = (
    Switch("the first type of a job is chosen by its profile", {"policy.first_type": "profiled"}, only="sia"),
    Switch("most observed type stands in for others", {"estimate.reference": "most"}, only="sia"),
    Switch("worth is not rounded", {"policy.decimals": "-1"}, only="sia"),
    Switch("models of speed are fitted best", {"estimate.fit": "best"}, only="sia"),
    Switch("the restart factor has a bound", {"policy.discount": "robust"}, only="sia"),
)

PLAIN_WORLD = Switch("a world without the published simulator's clock and delays", {"sim.fidelity": "paper"})
SHORT_SEARCH = Switch("Pollux searches a tenth as long", {"policy.generations": "10"}, only="pollux")
RATES_PER_H = (10,)  # of figure 7: where Sia is furthest ahead, on the first made trace; chosen
QUARTER = 0.25  # of newTrace's arrivals; chosen


def figure1(request: Request) -> Series:
    """All jobs rigid: Sia beside Gavel."""
    traces = [f"{trace}@sia:rigid=1" for trace in traces_of(request, "philly")]
    specs = [
        spec_of(request, MIXED, trace, policy, JOBS["philly"])
        for policy in ("sia", "gavel")
        for trace in traces
    ]
    switches = (
        Switch("Sia knows the speeds on all types", {"estimate.mode": "oracle"}, only="sia"),
        *OF_SIA,
        Switch("fairness power -1", {"policy.fairness_power": "-1"}, only="sia"),
        Switch("fairness power 0.5", {"policy.fairness_power": "0.5"}, only="sia"),
        Switch("fairness power 1", {"policy.fairness_power": "1"}, only="sia"),
        Switch("Sia in rounds of 360 s, as Gavel", {"policy.round_s": "360"}, only="sia"),
        PLAIN_WORLD,
        Switch("Gavel shares fairly", {"policy.objective": "max-min-fairness"}, only="gavel"),
        Switch("Gavel minimises the makespan", {"policy.objective": "makespan"}, only="gavel"),
    )
    figures = (
        Figure("sia beside gavel", "avg_jct_reduction", AHEAD_OF_GAVEL),
        Figure("sia", "avg_jct_h", None),
        Figure("gavel", "avg_jct_h", None),
    )
    return Series(figures, tuple(switched_runs(request, specs, switches, _pairs)))


RIGID = ("shockwave", "themis", "gavel")  # of table 4
UNIFORM = "sia-homo-64"


def table4(request: Request) -> Series:
    """The rigid jobs of the uniform cluster: as the files have them, tuned anew for it, and each alone."""
    traces = traces_of(request, "philly")
    names = ("gpu_hours_per_job", "makespan_h", "avg_jct_h")
    figures = tuple(
        Figure(f"philly/{policy}", name, TABLE_4[policy][PER_TABLE.index(name)])
        for name in names
        for policy in RIGID
    )
    set_ups = [
        set_up(replace(spec_of(request, UNIFORM, trace, "gavel", JOBS["philly"]), window=1.0))
        for trace in traces
    ]
    tuned = [tuned_jobs(workload, setup, number) for number, (workload, setup) in enumerate(set_ups)]
    with TemporaryDirectory() as folder:
        paths = [str(Path(folder, f"tuned-{number}.csv")) for number in range(len(traces))]
        for jobs, path in zip(tuned, paths, strict=True):
            write_workload(jobs, Path(path))
        specs = [
            spec_of(request, UNIFORM, trace, policy, JOBS["philly"])
            for files in (traces, paths)
            for policy in RIGID
            for trace in files
        ]
        pooled = [figures_of(results) for results in _by(request.run(specs), 2 * len(RIGID))]

    def of_runs(what: str, ours: Sequence[dict[str, float]]) -> Switched:
        return Switched(what, "", tuple(Value(each[name]) for name in names for each in ours))

    def of_jobs(what: str, gpu_hours: Sequence[float]) -> Switched:
        hours = Value(sum(gpu_hours) / len(gpu_hours))
        return Switched(what, "", (hours,) * len(RIGID) + (Value(None),) * (len(figures) - len(RIGID)))

    rows = (
        of_runs(NOTHING, pooled[: len(RIGID)]),
        of_runs("jobs are tuned anew for 64 T4, as in the paper", pooled[len(RIGID) :]),
        of_jobs(
            "each job is alone and nothing is lost",
            [alone_gpu_hours(workload.jobs, setup) for workload, setup in set_ups],
        ),
        of_jobs(
            "both: tuned anew, and alone",
            [alone_gpu_hours(jobs, setup) for jobs, (_, setup) in zip(tuned, set_ups, strict=True)],
        ),
        of_jobs(
            "each job is alone, and tuned to half of the ideal, the lower limit",
            [most_gpu_hours(workload.jobs, setup) for workload, setup in set_ups],
        ),
    )
    return Series(figures, rows)


def modes(request: Request) -> Series:
    """Bootstrapped models of speed beside an oracle's, and beside no profiles (section 5.7)."""
    traces = traces_of(request, "helios")
    specs = [
        replace(spec_of(request, MIXED, trace, "sia", JOBS["helios"]), settings={"estimate.mode": mode})
        for mode in MODES
        for trace in traces
    ]
    beliefs = {
        "an untried type scales as those that were tried": Untried.MEASURED,
        "of an untried type one GPU must be tried first": Untried.SMALLEST,
        "of an untried type nothing is hoped: a job stays on its first": Untried.NEVER,
    }
    switches = (
        *(
            Switch(words, {"estimate.untried": belief}, having={"estimate.mode": "no-prof"})
            for words, belief in beliefs.items()
        ),
        Switch("a profile takes 120 s", {"sim.profile_s": "120"}, having={"estimate.mode": "bootstrap"}),
        *(replace(switch, only="") for switch in OF_SIA[:1]),
        Switch("all of the paper's world, not the published simulator's", PAPERS_WORLD),
    )
    figures = (
        Figure("bootstrap less than no-prof", "avg_jct_reduction", BETTER_THAN_NO_PROF),
        Figure("bootstrap more than oracle", "avg_jct_increase", WORSE_THAN_ORACLE),
    )

    def measure(results: Sequence[Result]) -> list[Value]:
        oracle, bootstrap, no_prof = _by(results, len(MODES))
        return [shorter(bootstrap, no_prof), longer(bootstrap, oracle)]

    return Series(figures, tuple(switched_runs(request, specs, switches, measure)))


def figure10(request: Request) -> Series:
    """Sia's rounds of 30 and 300 s beside those of 60 s."""
    traces = traces_of(request, "helios")
    ways = ({"policy.round_s": "30"}, {"policy.fairness_power": "-0.5"}, {"policy.round_s": "300"})
    specs = [
        replace(spec_of(request, MIXED, trace, "sia", JOBS["helios"]), settings=way)
        for way in ways  # the second is the table's, in rounds of 60 s
        for trace in traces
    ]
    switches = (
        Switch("all of the paper's world, not the published simulator's", PAPERS_WORLD),
        *(replace(switch, only="") for switch in OF_SIA[:1]),
    )
    figures = (
        Figure("rounds of 30 s beside 60 s", "avg_jct_increase", 0.0, "at least"),
        Figure("rounds of 300 s beside 60 s", "avg_jct_increase", LONGER_WITH_ROUNDS_OF_300_S),
    )

    def measure(results: Sequence[Result]) -> list[Value]:
        short, usual, long = _by(results, 3)
        return [longer(short, usual), longer(long, usual)]

    return Series(figures, tuple(switched_runs(request, specs, switches, measure)))


def figure4(request: Request) -> Series:
    """The made stand-in for the 30 jobs of the testbed: Sia beside Gavel and Pollux."""
    traces = testbed_traces(max(1, round(SEEDS * request.scale)))
    specs = [testbed_spec(request, trace, policy) for policy in POLICIES for trace in traces]
    switches = (
        Switch("twice the jobs in the same time", trace={"jobs": str(2 * TESTBED_JOBS)}),
        Switch("the same jobs in half the time", trace={"hours": f"{TESTBED_HOURS / 2:g}"}),
        *OF_SIA[:2],
        Switch("speeds are known beforehand", {"estimate.mode": "oracle"}, only="sia"),
        PLAIN_WORLD,
        Switch("Gavel shares fairly", {"policy.objective": "max-min-fairness"}, only="gavel"),
    )
    figures = (
        Figure("sia beside gavel", "avg_jct_reduction", SHORTER_THAN_GAVEL),
        Figure("sia beside pollux", "avg_jct_reduction", SHORTER_THAN_POLLUX),
    )

    def measure(results: Sequence[Result]) -> list[Value]:
        sia, pollux, gavel = _by(results, len(POLICIES))
        return [_shorter_by_trace(sia, other) for other in (gavel, pollux)]

    return Series(figures, tuple(switched_runs(request, specs, switches, measure)))


def fairness(request: Request) -> Series:
    """Finish-time fairness on the first of Helios's workloads: Sia, Pollux and Gavel."""
    trace = traces_of(request, "helios")[0]
    policies = ("sia", "pollux", "gavel")
    specs = [spec_of(request, MIXED, trace, policy, JOBS["helios"], fairness=True) for policy in policies]
    switches = (
        Switch("shares are cut to whole GPUs", {"sim.fair_share": "whole"}),
        PLAIN_WORLD,
        Switch("Gavel shares fairly", {"policy.objective": "max-min-fairness"}, only="gavel"),
        Switch("Gavel for finish-time fairness", {"policy.objective": "finish-time-fairness"}, only="gavel"),
        SHORT_SEARCH,
        Switch("Pollux has the mean of speed-ups", {"policy.fairness_power": "1"}, only="pollux"),
    )

    def measure(results: Sequence[Result]) -> list[Value]:
        known = [result.fairness for result in results if result.fairness is not None]
        worst = [Value(float(np.nanmax(rho))) for rho in known]
        return [*worst, *(Value(metrics.unfair_fraction(rho)) for rho in known)]

    figures = [Figure(f"helios/{policy}", "worst_ftf", FAIRNESS[policy][0]) for policy in policies]
    figures += [Figure(f"helios/{policy}", "unfair_fraction", FAIRNESS[policy][1]) for policy in policies]
    return Series(tuple(figures), tuple(switched_runs(request, specs, switches, measure)))


def figure7(request: Request) -> Series:
    """Sia beside Pollux on the first made trace of each rate that is shown."""
    traces = {rate: traces_at(rate, 1)[0] for rate in RATES_PER_H}
    specs = [
        spec_at(request, rate, trace, policy)
        for policy in ("sia", "pollux")
        for rate, trace in traces.items()
    ]
    switches = (
        Switch("Sia knows the speeds on all types", {"estimate.mode": "oracle"}, only="sia"),
        *OF_SIA[:1],
        Switch("worth is a mean of goodputs", {"policy.fairness_power": "1"}, only="sia"),
        SHORT_SEARCH,
        PLAIN_WORLD,
    )

    def measure(results: Sequence[Result]) -> list[Value]:
        ours_h, theirs_h = np.array([figures_of([result])["avg_jct_h"] for result in results]).reshape(2, -1)
        longer_by = theirs_h / ours_h - 1.0
        return [Value(float(each)) for each in (*(1.0 - ours_h / theirs_h), *ours_h, *theirs_h, *longer_by)]

    figures = [
        Figure(f"{rate} jobs an hour: sia beside pollux", "avg_jct_reduction", SHORTER_BY_RATE)
        for rate in traces
    ]
    figures += [
        Figure(f"{rate} jobs an hour/{policy}", "avg_jct_h", None)
        for policy in ("sia", "pollux")
        for rate in traces
    ]
    rows = switched_runs(request, specs, switches, measure)
    shown = [replace(row, values=row.values[: len(figures)]) for row in rows]
    longer_by = rows[0].values[len(figures) :]
    unknown = (Value(None),) * (len(figures) - len(longer_by))
    shown.append(Switched("by how much Pollux takes longer, over Sia's mean", "", (*longer_by, *unknown)))
    return Series(tuple(figures), tuple(shown))


def table3(request: Request) -> Series:
    """The rows that the first files contradict: tails on Philly, and Gavel and Pollux on newTrace."""
    philly, new = (traces_of(request, family)[0] for family in ("philly", "newtrace"))
    specs = [spec_of(request, MIXED, philly, policy, JOBS["philly"]) for policy in ("sia", "pollux")]
    specs += [spec_of(request, MIXED, new, policy, JOBS["newtrace"]) for policy in ("sia", "gavel", "pollux")]
    specs = [replace(spec, window=min(spec.window, QUARTER)) if spec.trace == new else spec for spec in specs]
    switches = (
        SHORT_SEARCH,
        *OF_SIA[:1],
        PLAIN_WORLD,
        Switch("Gavel shares fairly", {"policy.objective": "max-min-fairness"}, only="gavel"),
        Switch(
            "Gavel credits nothing on types that are too small", {"policy.too_large_per_s": "0"}, only="gavel"
        ),
    )

    def measure(results: Sequence[Result]) -> list[Value]:
        of_runs = [figures_of([result]) for result in results]
        sia, pollux, new_sia, gavel, new_pollux = of_runs
        return [
            Value(pollux["p99_jct_h"] / sia["p99_jct_h"]),
            Value(gavel["avg_jct_h"] / new_sia["avg_jct_h"]),
            Value(new_pollux["restarts_per_job"]),
        ]

    philly_p99, new_mean = (
        TABLE_3[family, policy][column] / TABLE_3[family, "sia"][column]
        for family, policy, column in (("philly", "pollux", 1), ("newtrace", "gavel", 0))
    )
    figures = (
        Figure("philly: pollux / sia", "p99_jct_h", philly_p99),
        Figure("newtrace: gavel / sia", "avg_jct_h", new_mean),
        Figure("newtrace/pollux", "restarts_per_job", TABLE_3["newtrace", "pollux"][-1]),
    )
    rows = switched_runs(request, specs, switches, measure)
    of_first = rows[0].values[-1].ours or 0.0
    with_first = (Value(None), Value(None), Value(of_first + 1.0))
    rows.append(Switched("the first start of a job counts as a restart", "", with_first))
    return Series(figures, tuple(rows))


def _by(results: Sequence[Result], ways: int) -> list[Sequence[Result]]:
    """The results of each way, over all traces."""
    count = len(results) // ways
    return [results[way * count : (way + 1) * count] for way in range(ways)]


def _pairs(results: Sequence[Result]) -> list[Value]:
    """Of two policies on the same traces: by how much the first is shorter, and the mean of each."""
    ours, theirs = _by(results, 2)
    return [shorter(ours, theirs), *(Value(figures_of(each)["avg_jct_h"]) for each in (ours, theirs))]


def shorter(ours: Sequence[Result], theirs: Sequence[Result]) -> Value:
    """1 less the ratio of pooled mean completion times, with the interval of it over traces."""
    pooled = [figures_of(results)["avg_jct_h"] for results in (ours, theirs)]
    return Value(1 - pooled[0] / pooled[1], _shorter_by_trace(ours, theirs).half)


def longer(ours: Sequence[Result], theirs: Sequence[Result]) -> Value:
    """The ratio of pooled mean completion times less 1, with the interval of it over traces."""
    value = shorter(ours, theirs)
    assert value.ours is not None
    return Value(-value.ours, value.half)


def _shorter_by_trace(ours: Sequence[Result], theirs: Sequence[Result]) -> Value:
    """The mean over traces of 1 less the ratio of mean completion times."""
    pairs = zip(ours, theirs, strict=True)
    return value_of([1 - float(mine.jct_s.mean() / other.jct_s.mean()) for mine, other in pairs])
