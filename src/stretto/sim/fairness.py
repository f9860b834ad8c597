"""Would each job have been better off alone on its share of the cluster?"""

from collections.abc import Callable
from dataclasses import replace
from math import isnan, nan

import numpy as np

from stretto.model import Cluster, InputError, Job, Node, NodeId, View
from stretto.sim import metrics
from stretto.sim.result import Result
from stretto.sim.run import Setup, simulate
from stretto.sim.settings import Batches
from stretto.sim.setup import truth_of
from stretto.sim.world import Starved
from stretto.traces.workload import Truth, Workload

Alone = Callable[[Job, Truth, int, int, float], float]  # (job, truth, kind, GPUs, exact share) -> seconds


def with_fairness(result: Result, workload: Workload, setup: Setup) -> Result:
    """The result with every job's finish-time fairness ρ (Sia, equation 6), simulating jobs alone.

    The isolated cluster on type t has max(1, floor(G_t / N_avg)) GPUs, N_avg the mean contention while the
    job was there.
    A policy that chooses batch sizes runs the job there by itself; otherwise the job keeps its request and
    takes R / share times as long where the share is smaller.
    """
    cluster = setup.cluster
    history = result.history
    contention = metrics.contention_over_life(
        np.array(history.sample_s),
        np.array(history.active),
        result.requests.submitted_s,
        np.nan_to_num(result.completed_s, nan=np.inf),
    )
    alone = _simulated(setup) if _adaptive(setup) else _time_shared(setup)
    seconds = np.full((len(workload.jobs), len(cluster.types)), nan)
    for row, (job, truth) in enumerate(zip(workload.jobs, workload.truths, strict=True)):
        for kind, capacity in enumerate(cluster.capacity.tolist()):
            share = max(1.0, capacity / float(contention[row]))
            seconds[row, kind] = alone(job, truth, kind, int(share), share)
    jct_s = metrics.completion_s(result.requests.submitted_s, result.completed_s)
    weight = cluster.capacity / cluster.total_gpus
    return replace(result, fairness=metrics.finish_time_fairness(jct_s, seconds, weight))


def _adaptive(setup: Setup) -> bool:
    return View.GOODPUT_MODEL in setup.policy.views and setup.sim.batches is Batches.ADAPTIVE


def _simulated(setup: Setup) -> Alone:
    """Alone under the same policy; equal jobs on equal shares are simulated once."""
    known: dict[tuple[object, ...], float] = {}

    def seconds(job: Job, truth: Truth, kind: int, gpus: int, share: float) -> float:
        duration_s = None if isnan(truth.duration_s) else truth.duration_s  # NaN is not equal to itself
        key = (job.model, job.batch_size, job.gpus, job.adaptivity, duration_s, kind, gpus)
        if key not in known:
            known[key] = _run_alone(job, truth, setup, kind, gpus)
        return known[key]

    return seconds


def _run_alone(job: Job, truth: Truth, setup: Setup, kind: int, gpus: int) -> float:
    """JCT of one job that is submitted at 0 to an empty cluster of some GPUs of one type; NaN: impossible."""
    if job.min_gpus > gpus:
        return nan
    cluster = share_of(setup.cluster, kind, gpus)
    lone = replace(job, submitted_s=0.0, rewards=(), gpu_types=(), reserved=None, gpus=min(job.gpus, gpus))
    workload = Workload("alone", [lone], [truth])
    try:
        result = simulate(workload, replace(setup, cluster=cluster, capacity_events=()))
    except (InputError, Starved):
        return nan  # the model cannot run on this type, or needs more GPUs
    return float(result.completed_s[0])


def _time_shared(setup: Setup) -> Alone:
    """On the GPUs asked for, stretched where the share is smaller (Themis: T_j max(1, R / share))."""

    def seconds(job: Job, truth: Truth, kind: int, gpus: int, share: float) -> float:
        stretch = max(1.0, job.gpus / share)
        if isnan(truth.duration_s):
            model = truth_of(job, setup.cluster, setup.sim, setup.profiles)
            ends_s = model.alone_s(kind, job.gpus, job.batch_size or model.limits.init_batch)
            return ends_s[-1] * stretch if ends_s else nan
        recorded = setup.cluster.types[kind].speed
        if truth.gpu_type:
            recorded /= setup.cluster.types[setup.cluster.type_index(truth.gpu_type)].speed
        return truth.duration_s / recorded * stretch

    return seconds


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
