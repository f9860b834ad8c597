"""What the service believes of a job: how fast it is, how long it takes, whether it is in transition.

Until when is a job on its way to what it is to hold? A policy of restarts leaves it alone so long.
"""

import json
from functools import lru_cache
from math import inf, nan

import numpy as np

from stretto.estimate.efficiency import NOISE_OF_INFERENCE
from stretto.estimate.speed_table import (
    SCALING,
    Measurement,
    SpeedEvidence,
    is_measurable,
    single_pass,
)
from stretto.model import (
    NOTHING_OBSERVED,
    UNLIMITED_GPUS,
    Adaptivity,
    Allocation,
    Cluster,
    Evidence,
    Kind,
    MeasuredSpeeds,
    Observations,
    Purpose,
    ServiceLevel,
    TrainingLimits,
    frozen,
    ints,
)
from stretto.service.reconcile.reconciler import STARTING_S, slots_of
from stretto.service.state.records import JobRecord
from stretto.service.state.remaining import Basis, stated_duration
from stretto.service.state.reported_metrics import MOST_COUNTED, NOISE, Points, with_news, with_points
from stretto.service.state.state import State

NOT = -inf  # it is not
WAITED_S = 60.0  # that a user has waited in front of a screen, and is not served soon; chosen


def recovering_until_s(record: JobRecord, wanted: Allocation | None, state: State) -> float:
    """Until when it is recovering, infinite: until something happens to it; `NOT` where it trains as wanted.

    It is while the workers that train are not those that are wanted: others must end first, newcomers
    import, a group is being built. Two cases count for a while only, since scripts need not say anything. One
    is a worker that may use the SDK but has not said so. The other is a job that trains but has told nothing
    of its speed.
    """
    if wanted is None or not record.accounting.held_gpus:
        return NOT
    members = record.members
    workers = [record.workers[name] for name in members.workers] if members.number else record.alive
    slots = set(slots_of(wanted, record.job.worker_gpus(state.nodes[wanted.nodes[0]].gpu_type)))
    if not record.is_open or {(worker.node, worker.mask) for worker in workers} != slots:
        return inf
    if members.number:
        if any(worker.joined < members.number for worker in workers):
            return inf
        is_known = bool(record.learned.profile or known_points(record))
        return NOT if is_known else members.at_s + STARTING_S
    if not all(worker.has_begun for worker in workers):
        return inf
    uses_sdk = record.spec.elastic is not None and record.uses_sdk is not False
    return max(worker.began_s for worker in workers) + STARTING_S if uses_sdk else NOT


def is_breakable(record: JobRecord) -> bool:
    """Whether nothing but the time for a start is lost where a recovering job is made smaller or stopped.

    Newcomers that import are simply ended, and what trains goes on; a start can be made again. Only while a
    group is being built do its members have to be left alone, which takes a moment. A user that waits for an
    interactive job would else wait for all that others import.
    """
    if record.job.kind is Kind.INTERACTIVE:
        return False
    members = record.members
    if not record.is_open or not members.number or members.leaves:
        return True
    return all(record.workers[name].joined >= members.number for name in members.workers)


# ── what short runs on one GPU of each type tell of a job before it starts, as a report says it ─────────────


@lru_cache(maxsize=4096)
def limits_in(text: str, types: tuple[str, ...]) -> TrainingLimits:
    """The limits that a profile (its JSON) states; a type of which it says nothing runs nothing.

    Equal profiles give one object, since what is believed of a job is remembered by it.
    """
    profile = json.loads(text)
    rows = [profile["types"].get(name, {}) for name in types]
    ratio = [[row.get("over", {}).get(name, nan) for name in types] for row in rows]
    return TrainingLimits(
        init_batch=int(profile["init_batch"]),
        max_batch=int(profile["max_batch"]),
        min_local=ints([int(row.get("min_local", 0)) for row in rows]),
        max_local=ints([int(row.get("max_local", 0)) for row in rows]),
        single_per_s=frozen(np.array([_number(row.get("single_per_s")) for row in rows])),
        replica_gpus=ints([max(int(row.get("replica_gpus", 1)), 1) for row in rows]),
        restart_s=float(profile["restart_s"]),
        reach_gpus=int(profile["reach_gpus"]),
        single_ratio=frozen(np.array(ratio)) if any(row.get("over") for row in rows) else None,
        accumulates=bool(profile.get("accumulates", True)),
    )


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else nan


# ── how fast a live job may be, before and after it was measured ────────────────────────────────────────────


RESTART_S = 30.0  # from being given GPUs to the first step, while nothing is measured; chosen
SWITCH_S = 1.0  # the same for a job that can change its size in place, as its workers have shown; chosen
MOST_TOGETHER = 1024  # requests that a worker answers together while its script has not said; chosen
REACH_GPUS = 64  # of a job whose largest batch is not known; chosen


def switches_in_place(record: JobRecord) -> bool:
    """Whether its workers have shown that they change their number without stopping."""
    return record.accounting.switches > 0 or bool(record.uses_sdk)


def speed_evidence_of(record: JobRecord, cluster: Cluster) -> SpeedEvidence:
    """What a job's table of speeds is made of: reports of its own, and of its model before it started."""
    learned, sizes = record.learned, worker_gpus_of(record, cluster)
    points = with_points(record.prior.points, learned.points)
    # Where a profile came before, counts are of workers; the SDK counts GPUs.
    measurements = _measurements(points, (1,) * len(sizes) if learned.profile else sizes)
    limits = limits_of(record, cluster)
    infers = record.job.purpose is Purpose.BATCH_INFERENCE
    batch = 0 if infers else int(record.spec.batch.init or 0)
    if limits is not None:
        batch = batch or limits.init_batch
    elif measurements:  # the script has not said; then it is what it trained with
        batch = min(max(measurements[0].samples, 1), MOST_COUNTED)
    grows = limits is not None and (infers or not learned.profile)
    profiled = limits.single_per_s.tolist() if limits is not None and learned.profile else ()
    return SpeedEvidence(
        measurements=measurements,
        batch=batch,
        largest_batch=limits.max_batch if limits is not None and grows else batch,
        max_local=() if limits is None else tuple(limits.max_local.tolist()),
        single_per_s=tuple(per_s if per_s > 0 else 0.0 for per_s in profiled),
        gpus_per_worker=record.job.gpus_per_worker,
        replica_gpus=sizes if record.job.replica_gpus else (),
        asked_gpus=record.job.gpus,
        reach_gpus=_reach_gpus(record, cluster),
        stated_per_s=_stated_per_s(record),
        scaling=1.0 if infers else SCALING,  # whose workers do not wait for each other
        service_level=service_level_of(record),
    )


def service_level_of(record: JobRecord) -> ServiceLevel | None:
    """What a job that serves has promised; None of all others."""
    job = record.job
    serves = job.purpose is Purpose.SERVING
    return ServiceLevel(job.latency_s, job.requests_per_s) if serves else None


def worker_gpus_of(record: JobRecord, cluster: Cluster) -> tuple[int, ...]:
    """GPUs of one worker, by type."""
    job = record.job
    if not job.replica_gpus:
        return (job.gpus_per_worker,) * len(cluster.types)
    return tuple(job.worker_gpus(name) for name in cluster.type_names)


def _stated_per_s(record: JobRecord) -> float:
    """Steps per second on what a job asks for, where its file says how many there are and its time."""
    stop, expected_s = record.spec.stop, record.spec.expected_time_s
    return stop.steps / expected_s if stop is not None and stop.steps and expected_s else 0.0


@lru_cache(maxsize=16_384)
def _measurements(points: Points, gpus_of_count: tuple[int, ...]) -> tuple[Measurement, ...]:
    """gpus_of_count: by type, the GPUs that a count of one in `points` means."""

    def workers(kind: float, gpus: float) -> int:
        return max(int(gpus) // (gpus_of_count[int(kind)] if 0 <= kind < len(gpus_of_count) else 1), 1)

    return tuple(
        Measurement(int(kind), int(nodes), workers(kind, gpus), int(local), int(passes), *times)
        for kind, nodes, gpus, local, passes, *times in points
    )


def _reach_gpus(record: JobRecord, cluster: Cluster) -> int:
    """GPUs beyond which a table is flat; a job without a bound can use four times what it asks for."""
    job = record.job
    reach = min(job.max_gpus if job.max_gpus < UNLIMITED_GPUS else max(4 * job.gpus, job.gpus), 4096)
    return min(reach, int(cluster.capacity.max()))


def prior_table(record: JobRecord, cluster: Cluster) -> MeasuredSpeeds:
    """Speeds relative to what was asked for, by the stated speeds of types and a usual loss by scaling.

    Logs whose configuration says `speeds: assumed` were decided with it, whatever had been measured.
    """
    return _prior_table(cluster, record.job.gpus, _reach_gpus(record, cluster))


@lru_cache(maxsize=4096)
def _prior_table(cluster: Cluster, asked_gpus: int, reach: int) -> MeasuredSpeeds:
    gpus = np.arange(int(cluster.capacity.max()) + 1, dtype=np.float64)
    useful = np.minimum(gpus, max(reach, asked_gpus))
    with np.errstate(divide="ignore"):
        relative = np.where(
            gpus > 0, (useful / asked_gpus) * SCALING ** np.log2(np.maximum(useful, 1e-9) / asked_gpus), 0.0
        )
    speeds = np.array([gpu_type.speed for gpu_type in cluster.types])
    per_s = frozen(speeds[:, None] * relative)
    return MeasuredSpeeds(per_s, per_s)


def limits_of(record: JobRecord, cluster: Cluster) -> TrainingLimits | None:
    """The batches that a job may have, from its file and its reports; None while its batch is not known."""
    if record.learned.profile:
        return limits_in(record.learned.profile, cluster.type_names)
    batch, latest = record.spec.batch, {**record.prior.said, **record.learned.latest}
    if record.job.purpose is Purpose.BATCH_INFERENCE:
        return _limits_of_inference(record, cluster)
    if record.job.purpose is Purpose.SERVING:
        return _limits_of_serving(record, cluster)
    init = int(batch.init or latest.get("init_batch") or 0)
    if not init:
        return None
    # Where the file and the script both bound it, both hold.
    most = min((int(bound) for bound in (batch.max, latest.get("max_batch")) if bound), default=init)
    most = max(most, init)
    local = _largest_local(record, cluster, latest.get("max_local"), most)
    smallest = max(1, min((*local, int(latest.get("min_local") or 1))))
    return _limits(
        init,
        most,
        smallest,
        local,
        SWITCH_S if switches_in_place(record) else RESTART_S,
        worker_gpus_of(record, cluster),
        bool(latest.get("accumulates", True)),
        singles(known_points(record), worker_gpus_of(record, cluster)),
    )


def _largest_local(
    record: JobRecord, cluster: Cluster, of_script: float | None, otherwise: int
) -> tuple[int, ...]:
    """(types,) the most samples on one GPU: both the file and the script may bound it, the file by type."""
    batch = record.spec.batch
    in_file = [batch.most_on((gpu_type.name, *gpu_type.aliases)) for gpu_type in cluster.types]
    return tuple(
        min((int(bound) for bound in (of_type, of_script) if bound), default=otherwise) for of_type in in_file
    )


def _limits_of_inference(record: JobRecord, cluster: Cluster) -> TrainingLimits | None:
    """Each worker passes batches of its own forward, of as many items as the script says.

    Until it has, each has its share of `batch.init`, as in traces. The more workers, the larger the batch of
    all. So goodput is throughput (Sia, SOSP 2023, section 3.4), and a step is one batch of one worker.
    """
    job, latest = record.job, {**record.prior.said, **record.learned.latest}
    workers = max(job.gpus // job.gpus_per_worker, 1)
    local = int(latest.get("init_batch") or -(-int(record.spec.batch.init or 0) // workers))
    if not local:
        return None
    local = min(local, record.spec.batch.per_gpu or local)
    most = int(cluster.capacity.max())
    restart_s = SWITCH_S if record.accounting.switches > 0 or bool(record.uses_sdk) else RESTART_S
    sizes = worker_gpus_of(record, cluster)
    alone = singles(known_points(record), sizes)
    on_each = (local,) * len(cluster.types)
    return _limits(local, local * most, local, on_each, restart_s, sizes, False, alone)


def _limits_of_serving(record: JobRecord, cluster: Cluster) -> TrainingLimits:
    """Each worker answers as many requests together as its script allows, and as its latency does."""
    latest = {**record.prior.said, **record.learned.latest}
    together = _largest_local(record, cluster, latest.get("max_local"), MOST_TOGETHER)
    restart_s = SWITCH_S if switches_in_place(record) else RESTART_S
    sizes, most = worker_gpus_of(record, cluster), int(cluster.capacity.max())
    unknown = (nan,) * len(sizes)
    level = service_level_of(record)
    return _limits(1, max(together, default=1) * most, 1, together, restart_s, sizes, False, unknown, level)


@lru_cache(maxsize=4096)
def singles(points: Points, replica_gpus: tuple[int, ...]) -> tuple[float, ...]:
    """Samples/s of one replica by type, as measured; NaN where it never ran alone.

    replica_gpus: of one replica, by type. It is at the largest local batch that was measured alone on every
    type where one was. So types can be compared (Sia, equation 1). Else it is at the largest of each.
    """
    rates: list[dict[int, float]] = [{} for _ in replica_gpus]
    for kind, _, gpus, local, _, grad_s, _ in points:
        if 0 <= kind < len(rates) and gpus == replica_gpus[int(kind)] and is_measurable(grad_s):
            rates[int(kind)][int(local)] = local / grad_s
    measured = [set(per_s_of_batch) for per_s_of_batch in rates if per_s_of_batch]
    common = max(set.intersection(*measured), default=0) if measured else 0
    return tuple(
        (per_s_of_batch[common] if common else per_s_of_batch[max(per_s_of_batch)]) if per_s_of_batch else nan
        for per_s_of_batch in rates
    )


@lru_cache(maxsize=4096)
def _limits(
    init: int,
    most: int,
    smallest: int,
    local: tuple[int, ...],
    restart_s: float,
    replica_gpus: tuple[int, ...],
    accumulates: bool,
    single_per_s: tuple[float, ...],
    service_level: ServiceLevel | None = None,
) -> TrainingLimits:
    """Shared by equal jobs, since what is believed of a job is remembered by this object."""
    return TrainingLimits(
        init_batch=init,
        max_batch=most,
        min_local=ints([smallest] * len(local)),
        max_local=ints(local),
        single_per_s=frozen(np.array(single_per_s, dtype=np.float64)),
        replica_gpus=ints(replica_gpus),
        restart_s=restart_s,
        reach_gpus=max(most // smallest, 1),
        accumulates=accumulates,
        service_level=service_level,
    )


def observations_of(
    record: JobRecord, cluster: Cluster, counts_workers: bool = True
) -> tuple[Observations, ...]:
    """By GPU type, what was measured: of earlier jobs of its model, and of itself, which counts more.

    Of a job of which short runs told beforehand, only its own, unless jobs share it. counts_workers: points
    are of replicas, as the model of steps has it. Decisions of older logs took the GPUs that workers report.
    """
    is_of_gpus = counts_workers and not record.learned.profile
    sizes = worker_gpus_of(record, cluster) if is_of_gpus else (1,) * len(cluster.types)
    return _observations(known_points(record), sizes)


def known_points(record: JobRecord) -> Points:
    """What was measured of a job, and of its model where jobs share that or nothing was told before."""
    if record.prior.shared:
        return with_news(record.prior.points, record.learned.points, replaces=True)
    if record.learned.profile:
        return record.learned.points
    return with_points(record.prior.points, record.learned.points)


def largest_known_gpus(record: JobRecord) -> int:
    """The most GPUs on which it ran, or on which jobs of its model were measured before it."""
    prior = 0 if record.learned.profile and not record.prior.shared else record.prior.largest_gpus
    return max(record.accounting.largest_held, prior)


@lru_cache(maxsize=16_384)
def _observations(points: Points, gpus_of_count: tuple[int, ...]) -> tuple[Observations, ...]:
    observed = [NOTHING_OBSERVED] * len(gpus_of_count)
    for measurement in _measurements(points, gpus_of_count):
        if not 0 <= measurement.kind < len(observed):
            continue
        point = single_pass(measurement)
        if point is not None:
            observed[measurement.kind] = observed[measurement.kind].with_point(point)
    return tuple(observed)


# ── what the service knows of its jobs, as the views of a policy show it ────────────────────────────────────


def work_left(record: JobRecord) -> float:
    """Steps of the initial batch that are left where the stop rule says how many; else NaN.

    Of a job that serves it is seconds, where its owner says for how long.
    """
    if record.job.purpose is Purpose.SERVING:
        whole_s, basis = stated_duration(record)
        return nan if basis is Basis.ASSUMED else max(whole_s - record.accounting.executed_s, 1.0)
    latest, stop = record.learned.latest, record.spec.stop
    infers = record.job.purpose is Purpose.BATCH_INFERENCE
    done = float(latest.get("progress_steps", latest.get("step", 0.0)))
    if stop is not None and stop.steps is not None and not (infers and latest.get("init_batch")):
        return max(stop.steps - done, 1.0)
    batch = float(latest.get("init_batch") or 0.0)
    dataset = float(latest.get("dataset_samples") or 0.0)
    epochs = 1 if infers else None if stop is None else stop.epochs or stop.max_epochs
    if epochs is not None and batch and dataset:
        return max(epochs * dataset / batch - done, 1.0)
    return nan


def evidence_of(record: JobRecord, cluster: Cluster, counts_workers: bool = True) -> Evidence | None:
    """What a job has shown; None where it can only be as fast as a table says.

    counts_workers: see `observations_of`.
    """
    learned = record.learned
    if record.job.adaptivity is Adaptivity.RIGID and not learned.points and not learned.profile:
        return None
    limits = limits_of(record, cluster)
    if limits is None:
        return None
    latest, of_model = record.learned.latest, record.prior.said
    if record.job.purpose is not Purpose.TRAINING:
        observed = observations_of(record, cluster, counts_workers)
        return Evidence(limits, observed, NOISE_OF_INFERENCE.sqr, NOISE_OF_INFERENCE.var)
    counts = record.prior.shared or not learned.profile
    if "grad_sqr" not in latest and of_model.get("init_batch") == limits.init_batch and counts:
        latest = {**{key: of_model[key] for key in NOISE if key in of_model}, **latest}
    fixed = record.job.adaptivity is not Adaptivity.ADAPTIVE
    return Evidence(
        limits=limits,
        observed=observations_of(record, cluster, counts_workers),
        grad_sqr=float(latest.get("grad_sqr", nan)),
        grad_var=float(latest.get("grad_var", nan)),
        fixed_batch=int(latest.get("batch") or limits.init_batch) if fixed else 0,
    )


def cpus_per_gpu(record: JobRecord) -> float:
    """Cores at which it is at its fastest, as far as its owner says; NaN unknown."""
    cpus = record.spec.resources.cpus
    return nan if cpus is None else cpus / record.job.gpus
