"""Cornucopia beside the policies of its table 2: queuing, completion times, wrong labels, rigid jobs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from stretto.experiments.draws import draws_words, merged, missing_words, seeds_of
from stretto.experiments.reproduction import Input, Made, Request, Row, data_set
from stretto.experiments.spec import RunSpec, set_up
from stretto.model import BoolArray, FloatArray, Kind
from stretto.policies.registry import policy_names
from stretto.sim import metrics
from stretto.sim.result import Result
from stretto.traces import Workload

CLUSTERS = (320, 640, 960)  # GPUs in nodes of 8; section 5.1
VENUS_CLUSTERS = (256, 320, 640)  # on Helios Venus
VENUS, SATURN = "helios-mix2", "helios-saturn"  # made jobs of these clusters
# Section 5.3: its profiling "incurs significant time overhead". How many GPUs: UniSched, section II-B.
CHRONUS_PROFILES_ON = "16"
# The paper does not state Tiresias' bounds. Of seven sets these have the least mean completion time on MIX1,
# another draw of the same two weeks, over the three clusters: 900 x 2^k (decision 0004).
TIRESIAS_BOUNDS = "900,1800,3600,7200,14400,28800,57600,115200,230400,460800,921600,1843200"
LUCID_BOUND = "18000"  # GPU-seconds: of the published simulator from which ours has its default
OTHERS = ("tiresias", "elasticflow", "synergy", "chronus", "srtf")  # table 2
PUBLISHED = tuple(name for name in OTHERS if name != "srtf")  # the "existing methods" of sections 5.2 and 5.3
FIRST_SUBMISSIONS = (
    1_000  # whose durations give thresholds that are known beforehand; one update of the paper's
)
LEAST_JOBS = 200  # chosen: about so many arrivals are kept, however small the scale
JOBS = 30_746  # in MIX2
MADE_HOURS = 336  # of arrivals, where the trace is made
QUEUED_S = (1.0, 60.0, 600.0, 3_600.0)  # chosen: points of figure 5's curves, which are only drawn
SHARES = (0.0, 0.05, 0.1)  # wrongly labelled, or not elastic
# Saturn asks for 7.5, 3.7 and 2.5 times its clusters, so that tens of thousands of jobs would wait at once.
SATURN_SHARE = 0.1  # of its two weeks that is simulated at scale 1; chosen

# What the text says; the figures themselves carry no numbers that could be read.
QUEUE_S = {"cornucopia": 1.0}  # section 5.2 and highlights: within 1 s
QUEUE_320_S = {"cornucopia": 1.0, "tiresias": 300.0}  # section 5.2: up to 300 s
QUEUE_REDUCTION = 0.9  # highlights: over 90 %
JCT_REDUCTION = 0.77  # section 5.3: up to, on Philly
INFLATION_REDUCTION = 0.68  # section 5.3: up to
HELIOS_JCT_REDUCTION = 0.10  # section 5.3: about, on Venus and Saturn
HELIOS_INFLATION_REDUCTION = 0.77  # section 5.3: from 19 % on

Key = tuple[int, str]  # (GPUs, policy, or a variant of one)

# What a variant of a policy changes: its policy and settings.
VARIANTS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "tiresias, one bound": ("tiresias", {"policy.queue_bounds_gpu_s": LUCID_BOUND}),
    # Table 2 says that it knows nothing beforehand; its own paper has owners say how many steps a job takes.
    "elasticflow, remaining work unknown": ("elasticflow", {"policy.knows_work": "false"}),
    "chronus, free profiles": ("chronus", {"policy.profiling_gpus": "0"}),
    "cornucopia, once the time to failure": ("cornucopia", {"policy.rttf_factor": "1"}),
    "cornucopia, four times the time to failure": ("cornucopia", {"policy.rttf_factor": "4"}),
    "cornucopia, thresholds known beforehand": ("cornucopia", {}),
    "srtf, interactive first": ("srtf", {"policy.interactive_first": "true"}),
    "cornucopia, linear jobs": ("cornucopia", {"sim.scaling": "linear"}),
}
SENSITIVITY = tuple(name for name in VARIANTS if not name.startswith("srtf"))


def figure4(request: Request) -> Made:
    """Interactive jobs' queuing time under each policy, and the tail of figure 5 on 320 GPUs."""
    trace = trace_of(request)
    compared = _compared(request, trace, variants=("tiresias, one bound",))
    rows = _queuing_rows(compared, QUEUE_320_S)
    return _inputs(request), rows, (*_notes(request), _demand([whole_workload(trace)]))


def figure6(request: Request) -> Made:
    """Completion times and their inflation under each policy, and one assumption after the other changed."""
    trace = trace_of(request)
    compared = _compared(request, trace, variants=SENSITIVITY)
    duration_s = true_durations_s(whole_workload(trace))
    rows = []
    for (gpus, policy), result in compared.items():
        rows += _jct_rows(_name(gpus, policy), result, duration_s)
        if policy in SENSITIVITY:
            rows.append(
                Row(_name(gpus, policy), "interactive_avg_queue_s", None, interactive_queue_s(result))
            )
    rows += _reductions(compared, duration_s)
    about_chronus = (
        "without deadlines chronus serves by the least GPU time left, which its profile tells it exactly; "
        f"jobs wait for that profile, on {CHRONUS_PROFILES_ON} GPUs set aside; srtf, by the least time, may "
        "do worse; cornucopia knows no durations"
    )
    return _inputs(request), rows, (*_notes(request), about_chronus)


def venus(request: Request) -> Made:
    """Figures 4 to 6 on Venus of Helios, of which no job list is public."""
    return _on_helios(request, VENUS, VENUS_CLUSTERS, 1.0)


def saturn(request: Request) -> Made:
    """Figures 4 to 6 on Saturn of Helios, of which no job list is public."""
    return _on_helios(request, SATURN, CLUSTERS, SATURN_SHARE)


def _on_helios(request: Request, made: str, clusters: Sequence[int], share: float) -> Made:
    """Synergy is absent, as in the paper: only Philly's jobs have its profiles there."""
    traces = [helios_trace(made, seed) for seed in seeds_of(request)]
    workloads = [whole_workload(trace) for trace in traces]
    part = replace(request, scale=request.scale * share)
    drawn = [
        _rows_on_helios(compared, true_durations_s(workload))
        for compared, workload in zip(
            _compared_on(part, traces, clusters, without=("synergy",)), workloads, strict=True
        )
    ]
    others = f"; and {len(traces) - 1} other draws of as many" if len(traces) > 1 else ""
    inputs = [Input("jobs", False, f"{made}, {workloads[0].source}{others}"), *_made_inputs()]
    notes = (
        draws_words(len(traces)),
        *missing_words(drawn),
        *_notes(part),
        "by the text's rule cancelled jobs are interactive; on Venus they have 40 % of the GPU time, more "
        "than 256 GPUs could serve at once; so the rule is used that gives the paper's counts on Philly",
        _demand(workloads, clusters),
    )
    return inputs, merged(drawn), notes


def _rows_on_helios(compared: Mapping[Key, Result], duration_s: FloatArray) -> list[Row]:
    rows = _queuing_rows(compared, QUEUE_S)
    for (gpus, policy), result in compared.items():
        rows += _jct_rows(_name(gpus, policy), result, duration_s)
    return rows + _reductions(compared, duration_s, HELIOS_JCT_REDUCTION, HELIOS_INFLATION_REDUCTION)


def figure9(request: Request) -> Made:
    """A share of the batch jobs calls itself interactive (section 5.5).

    Queuing times are of all jobs that say so, and of those that are; the paper does not say which it means.
    A mislabelled job is demoted once it has run for long, and waits with the batch jobs from then on.
    """
    return _varied(request, "mislabelled", queue_s=1.0)


def figure10(request: Request) -> Made:
    """A share of the jobs of several GPUs is not elastic (section 5.6)."""
    return _varied(request, "nonelastic", queue_s=None)


def _varied(request: Request, parameter: str, queue_s: float | None) -> Made:
    """Cornucopia under each share beside Synergy, whose jobs are never elastic; queue_s: the paper's."""
    traces = {share: trace_of(request, **{parameter: share}) for share in SHARES}
    keys = [(gpus, share) for gpus in CLUSTERS for share in SHARES]
    specs = [spec_of(request, gpus, traces[share], "cornucopia") for gpus, share in keys]
    rivals = ["synergy"] if "synergy" in policy_names() else []
    specs += [spec_of(request, gpus, traces[0.0], rival) for rival in rivals for gpus in CLUSTERS]
    results = request.run(specs)
    duration_s = true_durations_s(whole_workload(traces[0.0]))
    truly = np.array([job.kind is Kind.INTERACTIVE for job in whole_workload(traces[0.0]).jobs])
    rows = []
    for (gpus, share), result in zip(keys, results, strict=False):
        name = f"{_name(gpus, 'cornucopia')}, {parameter} {share:.0%}"
        rows.append(_limited(name, "interactive_avg_queue_s", queue_s, interactive_queue_s(result)))
        of_truly = result.queue_s[truly[: len(result.done)][result.done]]
        rows.append(_limited(name, "truly_interactive_avg_queue_s", queue_s, metrics.mean(of_truly)))
        rows += _jct_rows(name, result, duration_s)
    for gpus, result in zip(CLUSTERS, results[len(keys) :], strict=False):
        rows += _jct_rows(_name(gpus, "synergy"), result, duration_s)
    return _inputs(request), rows, _notes(request)


# ── which simulations ─────────────────────────────────────────────────────────────────────────────


def trace_of(request: Request, **labels: float) -> str:
    """Name of the trace to simulate; `labels` are parameters of its recipe: shares of mislabelled jobs."""
    words = ",".join(f"{key}={value:g}" for key, value in labels.items() if value)
    recipe = "cornucopia" + (f":{words}" if words else "")
    if request.data is None:
        return f"synthetic-philly:hours={MADE_HOURS},seed=0@{recipe}"
    return f"{data_set(request.data, 'chronus', 'trace_job_Philly_MIX2.csv.gz')}@{recipe}"


def helios_trace(made: str, seed: int) -> str:
    """Name of one draw of a cluster's made jobs, labelled for Cornucopia."""
    return f"{made}{',' if ':' in made else ':'}seed={seed}@cornucopia"


def spec_of(request: Request, gpus: int, trace: str, name: str) -> RunSpec:
    """One simulation, free of charge for changes as in section 7, and with all speeds known beforehand.

    name: of a policy, or one of VARIANTS.
    """
    policy, changed = VARIANTS.get(name, (name, {}))
    settings = {"sim.restart_s": "0", "sim.scaling": "catalogue"}
    if policy == "chronus":
        settings["policy.profiling_gpus"] = CHRONUS_PROFILES_ON
    if policy in ("tiresias", "synergy"):  # the queues of synergy are those of tiresias
        settings["policy.queue_bounds_gpu_s"] = TIRESIAS_BOUNDS
    settings |= changed
    if name == "cornucopia, thresholds known beforehand":
        settings |= _initial_means(whole_workload(trace)) | {"policy.means_from": "followed"}
    spec = RunSpec(f"gpu8-{gpus}", trace, policy, settings=settings)
    return replace(spec, window=min(1.0, max(request.scale, LEAST_JOBS / JOBS)))


@lru_cache(maxsize=8)
def whole_workload(trace: str) -> Workload:
    """All jobs of a trace after its recipe, in the order in which every run of it has them."""
    return set_up(RunSpec(f"gpu8-{CLUSTERS[0]}", trace, "srtf"))[0]


def _initial_means(workload: Workload) -> dict[str, str]:
    """Mean durations by label of the first submissions; that of all of them stands in for the RTTF."""
    jobs = workload.jobs[:FIRST_SUBMISSIONS]
    duration_s = true_durations_s(workload)[:FIRST_SUBMISSIONS]
    interactive = np.array([job.kind is Kind.INTERACTIVE for job in jobs])
    means = {
        "interactive_mean_s": duration_s[interactive],
        "batch_mean_s": duration_s[~interactive],
        "rttf_s": duration_s,
    }
    return {f"policy.{name}": f"{of.mean():.0f}" for name, of in means.items() if len(of)}


def _compared(
    request: Request,
    trace: str,
    clusters: Sequence[int] = CLUSTERS,
    variants: Sequence[str] = (),
    without: Sequence[str] = (),
) -> dict[Key, Result]:
    """Every policy that there is, and these variants of some, on every cluster."""
    (compared,) = _compared_on(request, [trace], clusters, variants, without)
    return compared


def _compared_on(
    request: Request,
    traces: Sequence[str],
    clusters: Sequence[int],
    variants: Sequence[str] = (),
    without: Sequence[str] = (),
) -> list[dict[Key, Result]]:
    """The same for each of several traces, all simulated together."""
    known = policy_names()
    names = ["cornucopia", *(name for name in OTHERS if name in known and name not in without)]
    names += [name for name in variants if VARIANTS[name][0] in names]
    keys = [(gpus, name) for gpus in clusters for name in names]
    specs = [spec_of(request, gpus, trace, name) for trace in traces for gpus, name in keys]
    results = request.run(specs)
    of_trace = (results[first : first + len(keys)] for first in range(0, len(results), len(keys)))
    return [dict(zip(keys, each, strict=True)) for each in of_trace]


# ── what came of them ─────────────────────────────────────────────────────────────────────────────


def _name(gpus: int, policy: str) -> str:
    # Its mechanism divides cores, of which no trace here says anything: it is least service, consolidated.
    return f"{gpus} GPUs: {policy}{' (inert: no demand for cores)' * (policy == 'synergy')}"


def _queuing_rows(compared: Mapping[Key, Result], on_smallest: Mapping[str, float]) -> list[Row]:
    """Figure 4, figure 5 on the smallest cluster; on_smallest: what the paper's text says of that one."""
    smallest = min(gpus for gpus, _ in compared)
    rows = []
    for (gpus, policy), result in compared.items():
        paper = (on_smallest if gpus == smallest else QUEUE_S).get(policy)
        queue_s = interactive_queue_s(result)
        rows.append(_limited(_name(gpus, policy), "interactive_avg_queue_s", paper, queue_s))
    for (gpus, policy), result in compared.items():
        if gpus == smallest:
            queues_s = _interactive_queues_s(result)
            for point_s in QUEUED_S:
                share = float((queues_s > point_s).mean()) if len(queues_s) else None
                rows.append(Row(_name(gpus, policy), f"interactive_share_over_{point_s:g}s", None, share))
    for gpus, policy in compared:
        if policy in PUBLISHED:
            ours = interactive_queue_s(compared[gpus, "cornucopia"])
            less = _less(ours, interactive_queue_s(compared[gpus, policy]))
            name = f"{gpus} GPUs: less than {policy}"
            rows.append(Row(name, "interactive_queue_reduction", QUEUE_REDUCTION, less, "at least"))
    return rows


def _limited(name: str, metric: str, most: float | None, ours: float | None) -> Row:
    """A row of which the paper says how large the figure is at most, or nothing."""
    return Row(name, metric, most, ours, "at most" if most is not None else "")


def _interactive_queues_s(result: Result) -> FloatArray:
    return result.queue_s[result.requests.interactive[result.done]]


def interactive_queue_s(result: Result) -> float | None:
    """Their mean queuing time in seconds; None where none is done."""
    queue_s = _interactive_queues_s(result)
    return float(queue_s.mean()) if len(queue_s) else None


def true_durations_s(workload: Workload) -> FloatArray:
    """(jobs,) seconds that each job takes on what it asks for."""
    return np.array([truth.duration_s for truth in workload.truths])


def mean_inflation(result: Result, duration_s: FloatArray) -> float:
    """Completion times over durations on what was asked for, on average."""
    alone_s = duration_s[: len(result.done)][result.done]
    return metrics.mean(metrics.jct_inflation(result.jct_s, alone_s))


def _jct_rows(name: str, result: Result, duration_s: FloatArray) -> list[Row]:
    return [
        Row(name, "avg_jct_h", None, metrics.mean(result.jct_s) / 3600),
        Row(name, "avg_jct_inflation", None, mean_inflation(result, duration_s)),
    ]


def _less(ours: float | None, theirs: float | None) -> float | None:
    """By which share ours is smaller; None where theirs is nothing."""
    return None if ours is None or not theirs else 1.0 - ours / theirs


def _reductions(
    compared: Mapping[Key, Result],
    duration_s: FloatArray,
    of_jct: float = JCT_REDUCTION,
    of_inflation: float = INFLATION_REDUCTION,
) -> list[Row]:
    """The largest and smallest reductions over clusters and published policies.

    The paper says how large its own are at most; below zero Cornucopia does worse.
    """
    pairs = [
        (compared[gpus, "cornucopia"], result)
        for (gpus, policy), result in compared.items()
        if policy in PUBLISHED
    ]
    jct = [_less(metrics.mean(ours.jct_s), metrics.mean(theirs.jct_s)) for ours, theirs in pairs]
    inflation = [
        _less(mean_inflation(ours, duration_s), mean_inflation(theirs, duration_s)) for ours, theirs in pairs
    ]
    rows = []
    for name, of, stated in (
        ("avg_jct_reduction", jct, of_jct),
        ("inflation_reduction", inflation, of_inflation),
    ):
        reductions = [value for value in of if value is not None]
        rows.append(Row("cornucopia, largest reduction", name, stated, max(reductions, default=None)))
        rows.append(Row("cornucopia, smallest reduction", name, None, min(reductions, default=None)))
    return rows


def _inputs(request: Request) -> list[Input]:
    real = request.data is not None
    trace = "jobs of Philly as published with Chronus, MIX2" if real else "synthetic-philly, two weeks"
    return [Input("arrivals, requests, durations", real, trace), *_made_inputs()]


def _made_inputs() -> list[Input]:
    labels = "interactive up to 30 minutes, the rule that gives the paper's counts; draws are seeded"
    speeds = "the built-in catalogue; alexnet, mobilenet_v2 and resnet101 run as their nearest models there"
    return [
        Input("labels and elasticity", False, labels),
        Input("speed by number of GPUs", False, speeds),
    ]


def _demand(workloads: Sequence[Workload], clusters: Sequence[int] = CLUSTERS) -> str:
    """How many times the GPUs of each cluster the jobs ask for, and how many the interactive ones at once.

    Both decide how long which jobs have to wait, whatever the policy. Of several draws: the mean, the most.
    """
    mean_gpus = np.mean([_asked_gpus(workload) for workload in workloads])
    times = ", ".join(f"{mean_gpus / gpus:.1f} times {gpus} GPUs" for gpus in clusters)
    most = max(_most_interactive_gpus(workload) for workload in workloads)
    return (
        f"while jobs arrive, the whole workload asks for {times}; without deadlines elasticflow serves by "
        "submission, so that interactive jobs wait behind all that came before; interactive jobs alone would "
        f"hold up to {most} GPUs at once if none waited: on fewer, some wait for each other"
    )


def _asked_gpus(workload: Workload) -> float:
    """GPUs that all jobs ask for on average while they arrive."""
    gpu_s = float(np.dot([job.gpus for job in workload.jobs], true_durations_s(workload)))
    submitted_s = [job.submitted_s for job in workload.jobs]
    return gpu_s / max(max(submitted_s) - min(submitted_s), 1.0)


def _most_interactive_gpus(workload: Workload) -> int:
    interactive = [job.kind is Kind.INTERACTIVE for job in workload.jobs]
    return most_gpus_at_once(workload, np.array(interactive, dtype=np.bool_))


def most_gpus_at_once(workload: Workload, of: BoolArray) -> int:
    """GPUs that these jobs hold at most at once if each starts when it is submitted."""
    if not of.any():
        return 0
    gpus = np.array([job.gpus for job in workload.jobs])[of]
    start_s = np.array([job.submitted_s for job in workload.jobs])[of]
    at_s = np.concatenate([start_s + true_durations_s(workload)[of], start_s])
    change = np.concatenate([-gpus, gpus])  # ends before starts of the same time
    return int(change[np.argsort(at_s, kind="stable")].cumsum().max())


def _notes(request: Request) -> tuple[str, ...]:
    absent = [name for name in OTHERS if name not in policy_names()]
    notes = [
        f"scale {request.scale:g}: that share of the time over which jobs arrive",
        "the paper's figures are drawn without numbers; what is set beside ours is what its text says, "
        "mostly limits",
        "thresholds of cornucopia are learned from jobs that have ended; nothing fails in this trace, so "
        "that the mean of all stands in for the time to failure; with thresholds known beforehand they are "
        f"the means of the first {FIRST_SUBMISSIONS:,} submissions from the start",
        f"bounds of tiresias: {TIRESIAS_BOUNDS} GPU-seconds, the best of seven sets on MIX1, another draw of "
        f"these two weeks; with one bound: {LUCID_BOUND}",
    ]
    if absent:
        notes.append(f"not there yet, and left out: {', '.join(absent)}")
    return tuple(notes)
