"""Would each job have been better off alone on its share of the cluster?"""

from collections.abc import Callable
from dataclasses import replace
from math import floor, isnan, nan

import numpy as np

from stretto.model import Cluster, InputError, Job, Node, NodeId, TrainingLimits, View
from stretto.sim import metrics
from stretto.sim.result import Result
from stretto.sim.run import Setup, simulate
from stretto.sim.settings import FairShare
from stretto.sim.setup import truth_of
from stretto.sim.truth.training import TrainingTruth
from stretto.sim.world import Starved
from stretto.traces.workload import Truth, Workload, reach_of

Alone = Callable[[Job, Truth, int, float], float]  # (job, truth, kind, GPUs of its share) -> seconds

ROUNDING = 1e-6  # of a share: 24 GPUs / N_avg = 8 computed from sums of times must not become 7


def with_fairness(result: Result, workload: Workload, setup: Setup) -> Result:
    """The result with every job's finish-time fairness ρ (Sia, equation 6), from its JCT alone on its share.

    The share on type t is max(1, G_t / N_avg) GPUs, N_avg the mean contention while the job was there. Under
    a policy that sizes jobs by their goodput the job is simulated alone on its share. The policy is the same,
    and so is the moment of a round at which it is submitted. A share of 3.7 GPUs lies between 3 and 4, as in
    the published simulator of Sia (`sim.fair_share`). If the share is smaller than the least that the job can
    run on, it has that least for a part of the time. Under any other policy it keeps its request. It has that
    for a part of the time where the share is smaller (Themis: T_j max(1, R / share)).

    NaN on a type that the job does not accept, or that could not hold it even if it were empty.
    """
    cluster, jobs = setup.cluster, result.requests.jobs
    contention = metrics.contention_over_life(result.requests.submitted_s, result.completed_s)
    alone = _simulated(setup) if View.GOODPUT_MODEL in setup.policy.views else _time_shared(setup)
    seconds = np.full((len(jobs), len(cluster.types)), nan)
    for row, (job, truth) in enumerate(zip(jobs, workload.truths, strict=True)):
        for kind in _accepted(job, cluster):
            share = max(1.0, int(cluster.capacity[kind]) / float(contention[row]))
            seconds[row, kind] = alone(job, truth, kind, share)
    jct_s = metrics.completion_s(result.requests.submitted_s, result.completed_s)
    weight = cluster.capacity / cluster.total_gpus
    return replace(result, fairness=metrics.finish_time_fairness(jct_s, seconds, weight))


def _accepted(job: Job, cluster: Cluster) -> list[int]:
    """The GPU types that a job may run on."""
    if not job.gpu_types:
        return list(range(len(cluster.types)))
    return sorted({cluster.type_index(name) for name in job.gpu_types})


def _simulated(setup: Setup) -> Alone:
    """Alone under the same policy; equal jobs on equal shares are simulated once."""
    truths = _truths(setup)
    reach = reach_of(setup.cluster)
    round_s = setup.policy.triggers.round_s
    known_s: dict[tuple[object, ...], float] = {}

    def seconds(job: Job, truth: Truth, kind: int, share: float) -> float:
        least = _least(job, truths(job).limits if isnan(truth.duration_s) else None, kind)
        if not least or least > reach[kind]:
            return nan
        if share <= least:
            return on_whole_gpus(job, truth, kind, least) * (least / share)
        fewer = floor(share * (1 + ROUNDING))
        part = share - fewer if setup.sim.fair_share is FairShare.BETWEEN else 0.0
        alone_s = on_whole_gpus(job, truth, kind, fewer)
        if part <= share * ROUNDING:
            return alone_s
        more_s = on_whole_gpus(job, truth, kind, fewer + 1)
        return alone_s if isnan(more_s) else (1 - part) * alone_s + part * more_s

    def on_whole_gpus(job: Job, truth: Truth, kind: int, gpus: int) -> float:
        lone = _lone(job, gpus, _same_moment_s(job.submitted_s, round_s))
        duration_s = None if isnan(truth.duration_s) else _duration_s(truth, setup.cluster)
        what = (job.model, job.batch_size, job.adaptivity, job.kind, job.preemptible, duration_s)
        key = (*what, lone.gpus, lone.min_gpus, lone.max_gpus, lone.submitted_s, kind, gpus)
        if key not in known_s:
            alone = replace(truth, duration_s=nan if duration_s is None else duration_s, gpu_type="")
            known_s[key] = _run_alone(
                lone, alone, replace(setup, cluster=share_of(setup.cluster, kind, gpus))
            )
        return known_s[key]

    return seconds


def _same_moment_s(submitted_s: float, round_s: float | None) -> float:
    """An early submission after which everything comes as it did: the wait for the round, and the rounds.

    Equal jobs then often are one simulation. Rounds are alike from the second on; the first is a world's own.

    Jobs that differ only in that moment cannot share one, with its wait added. A round that finds a job a
    few seconds older may grow it a round earlier: Sia and Pollux weigh its age against a restart. Of a short
    job that changes its time after the wait by more than a quarter.
    """
    if round_s is None:
        return 0.0
    return submitted_s if submitted_s < round_s else round_s + submitted_s % round_s


def _least(job: Job, limits: TrainingLimits | None, kind: int) -> int:
    """The fewest GPUs of a type on which a job can run; 0 where it cannot at all."""
    if limits is None:
        return job.min_gpus
    if not limits.max_local[kind]:
        return 0
    replica = int(limits.replica_gpus[kind])
    return -(-job.min_gpus // replica) * replica


def _lone(job: Job, gpus: int, submitted_s: float) -> Job:
    """The same job where no other is and there are so many GPUs of one type that it accepts."""
    return replace(
        job,
        submitted_s=submitted_s,
        gpus=min(job.gpus, gpus),
        gpu_types=(),
        reserved=None,
        rewards=(),
    )


def _run_alone(lone: Job, truth: Truth, setup: Setup) -> float:
    """Its JCT; NaN where the policy never starts it."""
    try:
        owned = replace(setup, capacity_events=(), lending=None, lenders=())
        result = simulate(Workload("alone", [lone], [truth]), owned)
    except (InputError, Starved):
        return nan
    return float(result.completed_s[0]) - lone.submitted_s


def _time_shared(setup: Setup) -> Alone:
    """On the GPUs asked for, for a part of the time where the share is smaller."""
    cluster = setup.cluster
    truths = _truths(setup)
    reach = reach_of(cluster)

    def seconds(job: Job, truth: Truth, kind: int, share: float) -> float:
        if job.gpus > reach[kind]:
            return nan
        stretch = max(1.0, job.gpus / share)
        if isnan(truth.duration_s):
            model = truths(job)
            ends_s = model.alone_s(kind, job.gpus, job.batch_size or model.limits.init_batch)
            return ends_s[-1] * stretch if ends_s else nan
        return _duration_s(truth, cluster) / cluster.types[kind].speed * stretch

    return seconds


def _duration_s(truth: Truth, cluster: Cluster) -> float:
    """How long a recorded job runs on a type of speed 1."""
    if not truth.gpu_type:
        return truth.duration_s
    return truth.duration_s * cluster.types[cluster.type_index(truth.gpu_type)].speed


def _truths(setup: Setup) -> Callable[[Job], TrainingTruth]:
    """What the model of a job really does; made once for each model."""
    made: dict[str, TrainingTruth] = {}

    def of(job: Job) -> TrainingTruth:
        if job.model not in made:
            made[job.model] = truth_of(job, setup.cluster, setup.sim, setup.profiles)
        return made[job.model]

    return of


def share_of(cluster: Cluster, kind: int, gpus: int) -> Cluster:
    """An isolated cluster of so many GPUs of one type, in nodes of its usual size."""
    gpu_type = cluster.types[kind]
    per_node = int(cluster.gpus_per_node[kind])
    sizes = _full_nodes(gpus, per_node)
    nodes = tuple(
        Node(NodeId(f"{gpu_type.name}-{index}"), gpu_type.name, size) for index, size in enumerate(sizes)
    )
    return Cluster(f"{cluster.name}/{gpu_type.name}×{gpus}", (gpu_type,), nodes)


def _full_nodes(gpus: int, per_node: int) -> list[int]:
    full, rest = divmod(gpus, per_node)
    return [per_node] * full + ([rest] if rest else [])
