"""Sia's figures of speeds, types and loads: figures 2, 4, 5, 6 and 7, and the GPT model of section 5.3."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from stretto.estimate.efficiency import gain
from stretto.experiments.reproduction import Input, Made, Request, Row, rows_over_seeds
from stretto.experiments.sia.settings import MIXED
from stretto.experiments.sia.workloads import SCALE_NOTE, figures_of, inputs_of, spec_of, traces_of
from stretto.experiments.spec import RunSpec, set_up
from stretto.model import Job, JobId
from stretto.sim.result import Result
from stretto.sim.run import Setup
from stretto.sim.setup import truth_of
from stretto.sim.truth.training import TrainingTruth
from stretto.traces.workload import Truth, Workload

POLICIES = ("sia", "pollux", "gavel")
GPUS = (1, 2, 4, 8, 16)  # figure 2, and of a pipeline's replicas
BATCHES = 24  # chosen: local batches tried for each placement, spaced geometrically
TESTBED, TESTBED_JOBS, TESTBED_HOURS = "sia-physical-44", 30, 3  # section 5.1
SEEDS = 5
SHORTER_THAN_GAVEL, SHORTER_THAN_POLLUX = 0.50, 0.35  # section 5.1: "by 50% and 35-50%, respectively"
MORE_THAN_POLLUX = 0.05  # figure 6: GPU hours of these two models under Sia
SPENDERS = ("yolov3", "deepspeech2")
RATES_PER_H = (10, 20, 30, 40, 50)  # figure 7
SHORTER_BY_RATE = 0.50  # section 5.2: "consistently outperforms Pollux by 50-65%"
ARRIVALS_H = 8
GPT, GPT_BATCH = "gpt_pmp", 48


def figure2(request: Request) -> Made:
    """The goodput of each model by type and number of GPUs, beside that of one T4."""
    trace = traces_of(request, "philly")[0]
    workload, setup = set_up(replace(spec_of(request, MIXED, trace, "sia", 160), window=1.0))
    rows = []
    for job in _one_of_each_model(workload.jobs):
        truth = truth_of(job, setup.cluster, setup.sim, setup.profiles)
        of_t4 = goodput(truth, setup.cluster.type_index("t4"), 1, 4)
        for kind, gpu_type in enumerate(setup.cluster.type_names):
            for gpus in GPUS:
                speed = goodput(truth, kind, gpus, int(setup.cluster.gpus_per_node[kind]))
                if speed > 0 and of_t4 > 0:
                    rows.append(
                        Row(f"{job.model} on {gpus} {gpu_type}", "goodput_of_t4", None, speed / of_t4)
                    )
    notes = (
        "the paper draws curves without numbers",
        "goodput is over a whole training, with the best batch in each epoch",
    )
    return [_speeds(request)], rows, notes


def figure4(request: Request) -> Made:
    """Thirty jobs of three hours on 44 GPUs of three types, simulated."""
    seeds = max(1, round(SEEDS * request.scale))
    traces = testbed_traces(seeds)
    specs = [testbed_spec(request, trace, policy) for policy in POLICIES for trace in traces]
    results = dict(zip(((spec.policy, spec.trace) for spec in specs), request.run(specs), strict=True))
    jct_h = {
        policy: [float(results[policy, trace].jct_s.mean()) / 3600 for trace in traces] for policy in POLICIES
    }
    rows = [row for policy in POLICIES for row in rows_over_seeds(policy, "avg_jct_h", None, jct_h[policy])]
    for other, paper in (("gavel", SHORTER_THAN_GAVEL), ("pollux", SHORTER_THAN_POLLUX)):
        shorter = [1 - ours / theirs for ours, theirs in zip(jct_h["sia"], jct_h[other], strict=True)]
        rows += rows_over_seeds(f"sia beside {other}", "avg_jct_reduction", paper, shorter)
    changes = [list(changes_of(results["sia", trace])) for trace in traces]
    for place, name in enumerate(("sizes", "types")):
        per_job = [float(np.mean([each[place] for each in of_trace])) for of_trace in changes]
        rows += rows_over_seeds(f"sia: changes of {name}", "per_job", None, per_job)
    notes = (
        "made jobs stand for the 30 of the paper's testbed, which are not read here; nothing ran on GPUs",
        'beside Pollux the paper says "35-50%"; the lower end stands here',
        "figure 5 draws three jobs of one run. Changes of size and type here are means over all jobs",
    )
    made = f"{seeds} times {TESTBED_JOBS} jobs of {TESTBED_HOURS} hours"
    return _made_jobs(request, made), rows, notes


def testbed_traces(seeds: int) -> list[str]:
    """The made jobs that stand for those of the testbed."""
    return [
        f"synthetic-sia:jobs={TESTBED_JOBS},hours={TESTBED_HOURS},seed={300 + seed}" for seed in range(seeds)
    ]


def testbed_spec(request: Request, trace: str, policy: str) -> RunSpec:
    """All of them, whatever share is asked for."""
    return replace(spec_of(request, TESTBED, trace, policy, TESTBED_JOBS), window=1.0)


def figure6(request: Request) -> Made:
    """GPU hours that each model takes, and on which types, on Helios."""
    traces = traces_of(request, "helios")
    specs = [spec_of(request, MIXED, trace, policy, 160) for policy in POLICIES for trace in traces]
    results = iter(request.run(specs))
    by_policy = {policy: [next(results) for _ in traces] for policy in POLICIES}
    hours = {policy: hours_by_model(results) for policy, results in by_policy.items()}
    rows = []
    for policy, of_models in hours.items():
        for model, by_type in sorted(of_models.items()):
            rows.append(Row(f"{model}/{policy}", "gpu_hours_per_job", None, sum(by_type.values())))
            for gpu_type, spent in by_type.items():
                share = spent / sum(by_type.values())
                rows.append(Row(f"{model}/{policy}, {gpu_type}", "share_of_gpu_hours", None, share))
    for model in SPENDERS:
        if model in hours["sia"] and model in hours["pollux"]:
            ours, theirs = (sum(hours[policy][model].values()) for policy in ("sia", "pollux"))
            rows.append(Row(f"{model}: sia / pollux", "gpu_hours", 1 + MORE_THAN_POLLUX, ours / theirs))
    notes = (
        SCALE_NOTE.format(scale=request.scale),
        "the bars have no numbers. The text has two models that take about 5 % more under Sia than Pollux",
    )
    return inputs_of(request, {"helios": traces}), rows, notes


def figure7(request: Request) -> Made:
    """The mean completion time by jobs an hour."""
    seeds = max(1, round(SEEDS * request.scale))
    traces = {rate: traces_at(rate, seeds) for rate in RATES_PER_H}
    specs = [
        spec_at(request, rate, trace, policy)
        for policy in POLICIES
        for rate, of_rate in traces.items()
        for trace in of_rate
    ]
    results = dict(zip(((spec.policy, spec.trace) for spec in specs), request.run(specs), strict=True))
    rows = []
    for rate, of_rate in traces.items():
        jct_h = {
            policy: [figures_of([results[policy, trace]])["avg_jct_h"] for trace in of_rate]
            for policy in POLICIES
        }
        for policy in POLICIES:
            rows += rows_over_seeds(f"{rate} jobs an hour/{policy}", "avg_jct_h", None, jct_h[policy])
        shorter = [1 - ours / theirs for ours, theirs in zip(jct_h["sia"], jct_h["pollux"], strict=True)]
        rows += rows_over_seeds(
            f"{rate} jobs an hour: sia beside pollux", "avg_jct_reduction", SHORTER_BY_RATE, shorter
        )
    notes = (
        f"{seeds} made traces for each rate; the authors' samples of Helios by rate are not read here",
        'the paper says "50-65%"; the lower end stands here',
    )
    made = f"jobs of {ARRIVALS_H} hours, {seeds} times {', '.join(map(str, RATES_PER_H))} an hour"
    return _made_jobs(request, made), rows, notes


def traces_at(rate_per_h: int, seeds: int) -> list[str]:
    """The made jobs of eight hours with so many arrivals an hour."""
    return [
        f"synthetic-sia:jobs={rate_per_h * ARRIVALS_H},hours={ARRIVALS_H},seed={400 + seed}"
        for seed in range(seeds)
    ]


def spec_at(request: Request, rate_per_h: int, trace: str, policy: str) -> RunSpec:
    """All of them, whatever share is asked for."""
    return replace(spec_of(request, MIXED, trace, policy, rate_per_h * ARRIVALS_H), window=1.0)


def gpt(request: Request) -> Made:
    """A pipeline of 2 stages on A100 and of 8 on RTX, scaled by replicas, among other jobs (section 5.3)."""
    trace = traces_of(request, "helios")[0]
    spec = spec_of(request, MIXED, trace, "sia", 160)
    workload, setup = set_up(spec)
    job = Job(JobId("gpt"), 0.0, gpus=2, model=GPT, batch_size=GPT_BATCH)
    if setup.profiles is None or GPT not in setup.profiles.names:
        return [Input(GPT, False, "left out: its profiles are not there")], [], ("nothing was made",)
    rows = list(_scaling_rows(job, setup))
    beside = _with(job, workload)
    result = request.run_with(spec, beside, setup)
    rows += _adaptation_rows(result, [each.id for each in beside.jobs].index(job.id))
    notes = (
        "speed by GPUs over that of one replica by its GPUs: 1 is linear, as the paper's text has it",
        SCALE_NOTE.format(scale=request.scale),
        "adaptation is drawn in the paper, without numbers",
    )
    profiled = Input(f"speeds of {GPT}", True, "measured profiles of Sia's authors")
    return [*inputs_of(request, {"helios": [trace]}), profiled], rows, notes


def _made_jobs(request: Request, what: str) -> list[Input]:
    """Made jobs, whatever data there are, and the speeds of their models."""
    return [Input(what, False, "made as `synthetic-sia`, by seed"), _speeds(request)]


def _speeds(request: Request) -> Input:
    return inputs_of(request, {})[-1]


def goodput(truth: TrainingTruth, kind: int, gpus: int, per_node: int) -> float:
    """1 / seconds of a training on consolidated GPUs, with the best batch in each epoch; 0: it cannot run."""
    limits = truth.limits
    each = max(int(limits.replica_gpus[kind]), 1)
    replicas, part = divmod(gpus, each)
    if not limits.max_local[kind] or not replicas or part:
        return 0.0
    full, rest = divmod(gpus, per_node)
    shape = (per_node,) * full + ((rest,) if rest else ())
    least = max(int(limits.min_local[kind]), 1)
    most = min(truth.most_local(kind, replicas), limits.max_batch // replicas)
    if most < least:
        return 0.0
    local_batches = sorted({round(batch) for batch in np.geomspace(least, most, BATCHES).tolist()})
    step_s = [truth.step(kind, shape, local)[0] * truth.slowdown for local in local_batches]
    seconds, begun = 0.0, 0.0
    for epoch, end in enumerate(truth.epoch_ends):
        rates = [
            _gain(truth, local * replicas, epoch) / took_s
            for local, took_s in zip(local_batches, step_s, strict=True)
        ]
        seconds += (end - begun) / max(rates)
        begun = end
    return 1.0 / seconds


def _gain(truth: TrainingTruth, batch: int, epoch: int) -> float:
    """Progress of one step in steps of the initial batch."""
    grad_sqr, grad_var = truth.grad_stats(batch, epoch)
    return float(gain(batch, truth.limits.init_batch, grad_var, grad_sqr))


def _one_of_each_model(jobs: Sequence[Job]) -> list[Job]:
    return [job for _, job in sorted({job.model: job for job in jobs}.items())]


def changes_of(result: Result) -> Iterator[tuple[int, int]]:
    """Of each job, how often its number of GPUs changed, and how often their type."""
    rows, _, _, kinds, gpus = result.history.columns()
    for row in range(len(result.requests.jobs)):
        mine = rows == row
        yield int((np.diff(gpus[mine]) != 0).sum()), int((np.diff(kinds[mine]) != 0).sum())


def hours_by_model(results: Sequence[Result]) -> dict[str, dict[str, float]]:
    """GPU hours of a mean job of each model, by type."""
    spent: dict[str, dict[str, float]] = {}
    count: dict[str, int] = {}
    for result in results:
        rows, start_s, end_s, kinds, gpus = result.history.columns()
        hours = (end_s - start_s) * gpus / 3600
        for number, job in enumerate(result.requests.jobs):
            by_type = spent.setdefault(job.model, dict.fromkeys(result.cluster.type_names, 0.0))
            count[job.model] = count.get(job.model, 0) + 1
            for kind, name in enumerate(result.cluster.type_names):
                by_type[name] += float(hours[(rows == number) & (kinds == kind)].sum())
    return {
        model: {name: each / count[model] for name, each in by_type.items()}
        for model, by_type in spent.items()
    }


def _scaling_rows(job: Job, setup: Setup) -> Iterator[Row]:
    """Samples per second of more replicas over those of one, by how many there are."""
    truth = truth_of(job, setup.cluster, setup.sim, setup.profiles)
    for kind, name in enumerate(setup.cluster.type_names):
        each, per_node = int(truth.limits.replica_gpus[kind]), int(setup.cluster.gpus_per_node[kind])
        most = min(int(setup.cluster.capacity[kind]), truth.limits.max_batch // GPT_BATCH * each)
        if not truth.limits.max_local[kind] or not each:
            continue
        alone_s = truth.step(kind, _shape(each, per_node), GPT_BATCH)[0]
        for replicas in GPUS[1:]:
            if replicas * each <= most:
                step_s = truth.step(kind, _shape(replicas * each, per_node), GPT_BATCH)[0]
                yield Row(f"{replicas * each} {name}", "speed_over_linear", 1.0, alone_s / step_s)


def _shape(gpus: int, per_node: int) -> tuple[int, ...]:
    full, rest = divmod(gpus, per_node)
    return (per_node,) * full + ((rest,) if rest else ())


def _with(job: Job, workload: Workload) -> Workload:
    """A workload with one more job, which comes first."""
    first = replace(job, submitted_s=workload.jobs[0].submitted_s)
    return replace(workload, jobs=[first, *workload.jobs], truths=[Truth(), *workload.truths])


def _adaptation_rows(result: Result, row: int) -> list[Row]:
    rows, _, _, _, gpus = result.history.columns()
    sizes = gpus[rows == row]
    resizes, retypes = list(changes_of(result))[row]
    figures = {
        "changes_of_size": float(resizes),
        "changes_of_type": float(retypes),
        "fewest_gpus": float(sizes.min()) if len(sizes) else 0.0,
        "most_gpus": float(sizes.max(initial=0)),
    }
    return [Row("among 160 jobs", name, None, value) for name, value in figures.items()]
