"""Why some of Cornucopia's figures come out otherwise here: assumptions switched one at a time."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from stretto.clusters import read_cluster
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
from stretto.experiments.cornucopia.comparison import (
    CLUSTERS,
    HELIOS_JCT_REDUCTION,
    INFLATION_REDUCTION,
    LUCID_BOUND,
    QUEUE_320_S,
    SATURN,
    SATURN_SHARE,
    VENUS,
    VENUS_CLUSTERS,
    helios_trace,
    interactive_queue_s,
    mean_inflation,
    spec_of,
    trace_of,
    true_durations_s,
    whole_workload,
)
from stretto.experiments.cornucopia.parts import (
    INFLATED,
    SUBLINEAR,
    gpus_beyond_linear,
    traces_of_table1,
)
from stretto.experiments.reproduction import Request
from stretto.experiments.spec import RunSpec, set_up
from stretto.model import FloatArray, Job, Kind
from stretto.policies.cornucopia.profiler import LINEAR_WITHIN
from stretto.sim import metrics
from stretto.sim.result import Result
from stretto.sim.run import simulate
from stretto.sim.settings import Scaling, SimSettings
from stretto.sim.truth.scaling import Curves

WRONG = 0.1  # share of the batch jobs that call themselves interactive: the worst case of figure 9
NEVER_S = "1e9"  # a mean after which no job is demoted in two weeks
NEVER_DEMOTED = {"policy.interactive_mean_s": NEVER_S, "policy.learn_every": "0"}
# Other bounds of Tiresias that were tried on MIX1 (decision 0004), in GPU-seconds.
OTHER_BOUNDS = {
    "18,000, as in Lucid": "18000",
    "3,600 x 10^k": "3600,36000,360000",
    "3,600 x 4^k": "3600,14400,57600,230400,921600",
    "1,800 x 2^k": "1800,3600,7200,14400,28800,57600,115200,230400,460800",
}
COMPARED = ("tiresias", "elasticflow", "chronus")  # the published policies that run on Saturn
TOLERANCES = (0.1, 0.2, 0.3, 0.5)  # chosen: within which a GPU counts as bringing as much as the second


def figure1(request: Request) -> Series:
    """Interactive jobs before all others beside plain SRTF, on the smallest cluster."""
    trace = trace_of(request)
    names = ("srtf", "srtf, interactive first")
    specs = [spec_of(request, CLUSTERS[0], trace, name) for name in names]
    switches = (
        Switch("a tenth of the batch jobs calls itself interactive", recipe={"mislabelled": "0.1"}),
        Switch("half of the batch jobs call themselves interactive", recipe={"mislabelled": "0.5"}),
        Switch("up to 6 hours is interactive", recipe={"interactive_s": "21600"}),
        Switch("the next larger cluster", cluster=f"gpu8-{CLUSTERS[1]}"),
    )

    def measure(results: Sequence[Result]) -> list[Value]:
        plain, first = (metrics.mean(result.jct_s) for result in results)
        done = results[1].done
        batch = ~results[1].requests.interactive[done]
        alone_s = true_durations_s(whole_workload(trace))[: len(done)][done]
        return [Value(first / plain), Value(first / metrics.mean(alone_s)), Value(_of(results, batch))]

    figures = (
        Figure(f"{CLUSTERS[0]} GPUs: interactive first", "avg_jct_over_srtf", INFLATED),
        Figure(f"{CLUSTERS[0]} GPUs: interactive first", "avg_jct_over_mean_duration", INFLATED),
        Figure(f"{CLUSTERS[0]} GPUs: interactive first", "avg_jct_of_batch_jobs_over_srtf", INFLATED),
    )
    return Series(figures, tuple(switched_runs(request, specs, switches, measure)))


def _of(results: Sequence[Result], batch: np.ndarray) -> float:
    """The mean completion time of batch jobs under the second policy over that under the first."""
    plain, first = (metrics.mean(result.jct_s[batch]) for result in results)
    return first / plain


def figure4(request: Request) -> Series:
    """How long interactive jobs wait on the smallest cluster under Cornucopia and under Tiresias."""
    trace = trace_of(request)
    names = ("cornucopia", "tiresias")
    specs = [spec_of(request, CLUSTERS[0], trace, name) for name in names]
    switches = (
        Switch("the next larger cluster, on which none has to wait", cluster=f"gpu8-{CLUSTERS[1]}"),
        *(
            Switch(f"bounds of Tiresias: {words}", {"policy.queue_bounds_gpu_s": bounds}, only="tiresias")
            for words, bounds in OTHER_BOUNDS.items()
        ),
    )

    def measure(results: Sequence[Result]) -> list[Value]:
        return [Value(interactive_queue_s(result)) for result in results]

    rows = switched_runs(request, specs, switches, measure)
    alone_s = _interactive_alone(spec_of(request, CLUSTERS[0], trace, "fifo"))
    rows.append(
        Switched("interactive jobs alone, first come first served", "", (Value(alone_s),) * len(names))
    )
    figures = tuple(
        Figure(f"{CLUSTERS[0]} GPUs: {name}", "interactive_avg_queue_s", QUEUE_320_S[name], "at most")
        for name in names
    )
    return Series(figures, tuple(rows))


def figure6(request: Request) -> Series:
    """By how much completion times are inflated less under Cornucopia, on the smallest cluster."""
    trace = trace_of(request)
    duration_s = true_durations_s(whole_workload(trace))
    specs = [spec_of(request, CLUSTERS[0], trace, name) for name in ("cornucopia", *COMPARED)]
    switches = (
        *(Switch(f"{gpus} GPUs", cluster=f"gpu8-{gpus}") for gpus in CLUSTERS[1:]),
        Switch("Cornucopia demotes no job from the first queue", NEVER_DEMOTED, only="cornucopia"),
        Switch("Chronus profiles at no cost", {"policy.profiling_gpus": "0"}, only="chronus"),
    )

    largest = Figure("cornucopia, largest reduction", "inflation_reduction", INFLATION_REDUCTION)
    return _reductions(request, specs, switches, largest, lambda result: mean_inflation(result, duration_s))


def _interactive_alone(spec: RunSpec) -> float | None:
    """Their mean queuing time in seconds, if no batch job is there."""
    workload, setup = set_up(spec)
    pairs = zip(workload.jobs, workload.truths, strict=True)
    alone = [pair for pair in pairs if pair[0].kind is Kind.INTERACTIVE]
    jobs, truths = zip(*alone, strict=True)
    return interactive_queue_s(simulate(replace(workload, jobs=jobs, truths=truths), setup))


def figure9(request: Request) -> Series:
    """A tenth of the batch jobs is labelled wrongly: how long interactive jobs wait, by what counts."""
    trace = trace_of(request, mislabelled=WRONG)
    truly = np.array([job.kind is Kind.INTERACTIVE for job in whole_workload(trace_of(request)).jobs])
    specs = [spec_of(request, gpus, trace, "cornucopia") for gpus in CLUSTERS]
    switches = (
        Switch("no job is demoted from the first queue", NEVER_DEMOTED),
        Switch("labels are right", recipe={"mislabelled": "0"}),
    )

    def waits(queue_s: Callable[[Result], FloatArray], of_truly: bool) -> Callable[..., list[Value]]:
        def measure(results: Sequence[Result]) -> list[Value]:
            chosen = [
                truly[: len(result.done)][result.done]
                if of_truly
                else result.requests.interactive[result.done]
                for result in results
            ]
            pairs = zip(results, chosen, strict=True)
            return [Value(metrics.mean(queue_s(result)[mine])) for result, mine in pairs]

        return measure

    rows = switched_runs(request, specs, switches, waits(_all_waits_s, of_truly=False))
    # Other readings of the same runs: what a queuing time is, and whose it is.
    results = request.run(specs)
    readings = {
        "only jobs that are interactive count": (_all_waits_s, True),
        "only the wait for the first GPUs counts": (_first_wait_s, False),
        "only the wait for the first GPUs of interactive jobs counts": (_first_wait_s, True),
    }
    for words, (queue_s, of_truly) in readings.items():
        rows.append(Switched(words, "", tuple(waits(queue_s, of_truly)(results))))
    figures = tuple(
        Figure(f"{gpus} GPUs: cornucopia, mislabelled {WRONG:.0%}", "interactive_avg_queue_s", 1.0, "at most")
        for gpus in CLUSTERS
    )
    return Series(figures, tuple(rows))


def _all_waits_s(result: Result) -> FloatArray:
    return result.queue_s


def _first_wait_s(result: Result) -> FloatArray:
    waited_s = metrics.initial_queuing_s(result.requests.submitted_s, result.first_start_s)
    return waited_s[result.done]


def table1(request: Request) -> Series:
    """Jobs with GPUs beyond proportional gains, by how much less a GPU may bring and still count."""
    curves = Curves(read_cluster(f"gpu8-{CLUSTERS[-1]}"), SimSettings(scaling=Scaling.CATALOGUE))
    jobs = {
        name: [whole_workload(trace).jobs for trace in draws]
        for name, draws in traces_of_table1(request).items()
    }
    rows = []
    ways: Mapping[str, float] = {
        NOTHING: LINEAR_WITHIN,
        **{f"a GPU may bring {within:.0%} less than the second": within for within in TOLERANCES},
    }
    for words, within in ways.items():
        values = []
        for draws in jobs.values():
            beyond = [gpus_beyond_linear(of_trace, curves, within) for of_trace in draws]
            values += [
                value_of([float((each > 0).sum()) for each in beyond]),
                value_of([float(each.sum()) for each in beyond]),
            ]
        rows.append(Switched(words, "", tuple(values)))
    rows.append(_of_philly(jobs, curves))
    figures = [
        Figure(name, metric, float(paper))
        for name in jobs
        for metric, paper in zip(("sublinear_jobs", "sublinear_gpus"), SUBLINEAR[name][1:], strict=True)
    ]
    return Series(tuple(figures), tuple(rows))


def _of_philly(jobs: Mapping[str, Sequence[Sequence[Job]]], curves: Curves) -> Switched:
    """As many jobs of each trace with the sizes and models of Philly's."""
    (of_philly,) = jobs["philly"]
    beyond = gpus_beyond_linear(of_philly, curves)
    values = []
    for draws in jobs.values():
        share = len(draws[0]) / len(of_philly)  # every draw has as many
        values += [Value(float((beyond > 0).sum() * share)), Value(float(beyond.sum() * share))]
    return Switched("sizes and models of jobs as on Philly", "", tuple(values))


def venus(request: Request) -> Series:
    """By how much jobs of Venus complete sooner under Cornucopia: one draw, on the smallest cluster."""
    return _on_helios(request, VENUS, VENUS_CLUSTERS)


def saturn(request: Request) -> Series:
    """The same of the jobs of Saturn."""
    return _on_helios(replace(request, scale=request.scale * SATURN_SHARE), SATURN, CLUSTERS)


def _on_helios(request: Request, made: str, clusters: Sequence[int]) -> Series:
    """Of one draw of a cluster's made jobs, on the smallest of these clusters."""
    trace = helios_trace(made, seed=0)
    specs = [spec_of(request, clusters[0], trace, name) for name in ("cornucopia", *COMPARED)]
    half = str(len(whole_workload(trace).jobs) // 2)
    switches = (
        Switch("half of the jobs in the same time", trace={"jobs": half}),
        Switch("the next larger cluster", cluster=f"gpu8-{clusters[1]}"),
        Switch("ElasticFlow knows no remaining work", {"policy.knows_work": "false"}, only="elasticflow"),
        Switch("Tiresias has one bound", {"policy.queue_bounds_gpu_s": LUCID_BOUND}, only="tiresias"),
    )

    largest = Figure("cornucopia, largest reduction", "avg_jct_reduction", HELIOS_JCT_REDUCTION)
    return _reductions(request, specs, switches, largest, lambda result: metrics.mean(result.jct_s))


def _reductions(
    request: Request,
    specs: Sequence[RunSpec],
    switches: Sequence[Switch],
    largest: Figure,
    mean_of: Callable[[Result], float],
) -> Series:
    """By how much a mean is less under Cornucopia: at most, and beside each of `COMPARED`.

    specs: of Cornucopia, then of those.
    """

    def measure(results: Sequence[Result]) -> list[Value]:
        ours, *theirs = map(mean_of, results)
        less = [1.0 - ours / each for each in theirs]
        return [Value(each) for each in (max(less), *less)]

    rows = switched_runs(request, specs, switches, measure)
    beside = [Figure(f"beside {name}", largest.metric, None) for name in COMPARED]
    return Series((largest, *beside), (*rows, *_other_readings(rows[0])))


def _other_readings(table: Switched) -> list[Switched]:
    """Of the table's own runs, whose values are the largest reduction and that beside each of `COMPARED`."""
    by_policy = {name: value.ours or 0.0 for name, value in zip(COMPARED, table.values[1:], strict=True)}
    readings = {
        "ElasticFlow is left out": max(less for name, less in by_policy.items() if name != "elasticflow"),
        "the mean beside all three, in the place of the largest": sum(by_policy.values()) / len(by_policy),
    }
    return [
        Switched(words, "", (Value(reduction), *(Value(None),) * len(COMPARED)))
        for words, reduction in readings.items()
    ]
