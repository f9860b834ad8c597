"""From what was asked for to what a scheduler decides over, on one cluster."""

from collections.abc import Sequence
from dataclasses import fields
from functools import lru_cache
from typing import Any

import numpy as np

from stretto.jobfile.parts import BatchPolicy, When
from stretto.jobfile.spec import PLAIN_KEYS, JobSpec
from stretto.model import Adaptivity, Cluster, Goal, InputError, Job, JobId, Reward
from stretto.suggestions import did_you_mean

JOB_KEYS = tuple(one.name for one in fields(Job) if one.name in PLAIN_KEYS)  # that a policy may read
# What a deadline without rewards is worth. UniSched (section III-C2) has 100 for it and lets soft rewards
# reach 100, too, so that the first step of a soft deadline could take its place. Chosen: more than any of
# these. Both are multiples of ten, as are the usual rewards: of round values a plan is sooner proved best.
DEADLINE_WORTH = 110.0
PASSED_S = 1.0  # after the submission, the deadline of a job that was written too late for it; chosen


def spec_to_job(
    spec: JobSpec,
    id: str,  # noqa: A002
    submitted_s: float,
    cluster: Cluster,
    *,
    user: str = "",
    weight: float = 1.0,
    epoch_s: float = 0.0,
    uses_sdk: bool = True,
) -> Job:
    """The job on a cluster. Times are on the clock whose zero was at `epoch_s` Unix time.

    uses_sdk: a job without it keeps its batch size, whatever it says. Raises InputError, with the reason,
    for a job that this cluster can never run, or whose deadlines cannot be kept.
    """
    check_possible(spec, submitted_s, cluster, epoch_s)
    return accepted_job(
        spec, id, submitted_s, cluster, user=user, weight=weight, epoch_s=epoch_s, uses_sdk=uses_sdk
    )


def check_possible(spec: JobSpec, submitted_s: float, cluster: Cluster, epoch_s: float = 0.0) -> None:
    """Raise InputError, with the reason, for a job that can never run there or keep its deadlines."""
    _check_one_number_each(spec, cluster)
    fewest, most = _range(spec)
    reasons = _reasons(spec, fewest, cluster, _alternatives(spec, cluster), most)
    if all(reasons):
        raise InputError(
            f"job {spec.name} can never run on cluster {cluster.name}: {'; '.join(dict.fromkeys(reasons))}"
        )
    previous_s = submitted_s
    for name, by, _ in _named_rewards(spec):
        due_s = by.seconds(submitted_s, epoch_s)
        if due_s <= submitted_s:
            raise InputError(
                f"{name} must be after the submission, got a time {submitted_s - due_s:.0f} s before"
            )
        if due_s <= previous_s:
            raise InputError(f"{name} must be later than the one before it")
        previous_s = due_s


def accepted_job(
    spec: JobSpec,
    id: str,  # noqa: A002
    submitted_s: float,
    cluster: Cluster,
    *,
    user: str = "",
    weight: float = 1.0,
    epoch_s: float = 0.0,
    uses_sdk: bool = True,
    deadline_worth: float = DEADLINE_WORTH,
) -> Job:
    """The job of a submission that was accepted once, which is not judged again: time has passed since.

    As `spec_to_job`, with two differences. A deadline that has passed is one that cannot be kept any more. A
    job that no type of the cluster fits any more keeps those that it names. Raises InputError only where the
    cluster has none of them.
    """
    fewest, most = _range(spec)
    named_kinds = tuple(dict.fromkeys(_alternatives(spec, cluster)))
    reasons = _reasons(spec, fewest, cluster, named_kinds)
    kinds = tuple(kind for kind, why in zip(named_kinds, reasons, strict=True) if not why) or named_kinds
    adaptivity = Adaptivity.RIGID
    if spec.elastic is not None:
        adapts = spec.batch.policy is BatchPolicy.ADAPTIVE and uses_sdk
        adaptivity = Adaptivity.ADAPTIVE if adapts else Adaptivity.STRONG_SCALING
    return Job(
        id=JobId(id),
        submitted_s=submitted_s,
        gpus=spec.gpus,
        batch_size=spec.batch.init or 0,
        min_gpus=fewest,
        max_gpus=most,
        adaptivity=adaptivity,
        gpus_per_worker=spec.resources.gpus_per_worker,
        replica_gpus=_replica_gpus(spec, cluster),
        heterogeneous=spec.resources.heterogeneous,
        within=spec.resources.within,
        checkpoints=True if spec.checkpoint is not None else None,
        goal=_goal(spec),
        preemptible=spec.preemptible,
        gpu_types=_names(spec, cluster, kinds),
        rewards=rewards_of(spec, submitted_s, epoch_s, deadline_worth),
        priority=spec.priority,
        priority_class=spec.priority_class,
        weight=weight,
        user=user,
        queue=spec.queue,
        labels=spec.labels,
        latency_s=spec.serving.latency_s if spec.serving is not None else 0.0,
        requests_per_s=spec.serving.requests_per_s if spec.serving is not None else 0.0,
        **plain_fields(spec),
    )


def plain_fields(spec: JobSpec) -> dict[str, Any]:
    """Fields of the job that are as the job file says under the same name."""
    return {name: getattr(spec, name) for name in JOB_KEYS}


def permitted_gpus(spec: JobSpec, gpus: int) -> int:
    """The largest size that the job may have, of at most so many GPUs; 0 where that is none.

    A `Job` has a range in whole workers; which sizes `elastic.sizes` leaves out is known only here.
    """
    fewest, most = _range(spec)
    if spec.elastic is not None and spec.elastic.sizes:
        return max((size for size in spec.elastic.sizes if size <= gpus), default=0)
    each = spec.resources.gpus_per_worker
    size = min(gpus, most or gpus) // each * each
    return size if size >= fewest else 0


def scaled_bounds(
    spec: JobSpec, fewest: int, most: int, cluster: Cluster, gpu_types: Sequence[str] = ()
) -> tuple[int, int]:
    """Bounds that the owner of an elastic job asks for later, as `elastic.sizes` lets it have them.

    gpu_types: that the job may run on; empty = any. Raises InputError, with the reason, where it could never
    run again.
    """
    if spec.elastic is not None and spec.elastic.sizes:
        sizes = [size for size in spec.elastic.sizes if fewest <= size <= most]
        if not sizes:
            all_sizes = ", ".join(map(str, spec.elastic.sizes))
            raise InputError(f"expected a range with one of the sizes {all_sizes}, got {fewest} to {most}")
        fewest, most = sizes[0], sizes[-1]
    kinds = [kind for kind, name in enumerate(cluster.type_names) if not gpu_types or name in gpu_types]
    reasons = _reasons(spec, fewest, cluster, kinds, most)
    if all(reasons):
        raise InputError(
            f"job {spec.name} could never run on cluster {cluster.name}: {'; '.join(dict.fromkeys(reasons))}"
        )
    return fewest, most


def _range(spec: JobSpec) -> tuple[int, int]:
    """Fewest and most GPUs in whole workers; most is 0 where there is no limit."""
    if spec.elastic is None:
        return spec.gpus, spec.gpus
    each = spec.resources.gpus_per_worker
    return -(-spec.elastic.min_gpus // each) * each, spec.elastic.max_gpus or 0


def _alternatives(spec: JobSpec, cluster: Cluster) -> Sequence[int]:
    """Types of the cluster that the job names, by its preference; all where it names none.

    A name that this cluster does not know is passed over while there is another: files are for many clusters.
    """
    accelerators = spec.resources.accelerators
    if not accelerators or any(not alternative.gpu_type for alternative in accelerators):
        return range(len(cluster.types))
    kind_by_name: dict[str, int] = {}
    for kind, gpu_type in enumerate(cluster.types):
        for name in (gpu_type.name, *gpu_type.aliases):
            kind_by_name.setdefault(name.lower(), kind)
    kinds = [
        kind_by_name[alternative.gpu_type.lower()]
        for alternative in accelerators
        if alternative.gpu_type.lower() in kind_by_name
    ]
    if not kinds:
        names = [name for gpu_type in cluster.types for name in (gpu_type.name, *gpu_type.aliases)]
        unknown = ", ".join(repr(alternative.gpu_type) for alternative in accelerators)
        hint = did_you_mean(accelerators[0].gpu_type, names if len(accelerators) == 1 else cluster.type_names)
        raise InputError(
            f"job {spec.name} can never run on cluster {cluster.name}: "
            f"resources.accelerators: unknown gpu type {unknown}, {hint}"
        )
    return kinds


def _check_one_number_each(spec: JobSpec, cluster: Cluster) -> None:
    """Raise InputError where a file says two numbers for one type, by names that mean the same here."""
    resources = spec.resources
    alternatives = resources.accelerators
    numbers_by_key = {
        "resources.gpus_per_worker": resources.replica_gpus,
        "resources.accelerators": {each.gpu_type: each.gpus for each in alternatives if each.gpus},
        "batch.per_gpu": spec.batch.per_gpu_of,
    }
    for gpu_type in cluster.types:
        names = {name.lower() for name in (gpu_type.name, *gpu_type.aliases)}
        for key, numbers in numbers_by_key.items():
            here = {name: number for name, number in numbers.items() if name.lower() in names}
            if len(set(here.values())) > 1:
                words = " and ".join(f"{name}: {number}" for name, number in here.items())
                raise InputError(
                    f"{key} must say one number for GPU type {gpu_type.name} of cluster {cluster.name},"
                    f" got {words}"
                )


def _replica_gpus(spec: JobSpec, cluster: Cluster) -> dict[str, int]:
    """GPUs of one worker by type as the cluster calls it; empty where all types are alike."""
    if not spec.resources.replica_gpus:
        return {}
    sizes = {one.name: spec.resources.worker_gpus((one.name, *one.aliases)) for one in cluster.types}
    return {name: gpus for name, gpus in sizes.items() if gpus}


def _names(spec: JobSpec, cluster: Cluster, kinds: tuple[int, ...]) -> tuple[str, ...]:
    """Types as the cluster calls them; empty where the job takes any and none is ruled out."""
    if not any(one.gpu_type for one in spec.resources.accelerators) and len(kinds) == len(cluster.types):
        return ()
    return tuple(cluster.type_names[kind] for kind in kinds)


def _reasons(spec: JobSpec, fewest: int, cluster: Cluster, kinds: Sequence[int], most: int = 0) -> list[str]:
    """Why the job can never run on each of these types; "" where it can, if only together with others.

    most: GPUs that it may have; 0: there is no limit, or a log is read, whose jobs were accepted without it.
    """
    if not spec.resources.heterogeneous:
        return [_never(spec, fewest, cluster, kind, most) for kind in kinds]
    each = spec.resources.gpus_per_worker
    reasons = [_never(spec, each, cluster, kind) for kind in kinds]
    able = [kind for kind, why in zip(kinds, reasons, strict=True) if not why]
    together = sum(_most_gpus(cluster, kind, each) for kind in able)
    if all(reasons) or fewest <= together:
        return reasons
    return [f"asks for {fewest} GPUs of several types, which have {together} together"] * len(kinds)


def _most_gpus(cluster: Cluster, kind: int, each: int) -> int:
    """The most GPUs of a type that one job may ask for, in whole workers."""
    gpus = np.sort(cluster.node_gpus[cluster.kind == kind] // each * each)[::-1]
    most_nodes = cluster.types[kind].max_nodes_per_job or len(gpus)
    return int(gpus[:most_nodes].sum()) // cluster.types[kind].stand_ins


def _never(spec: JobSpec, fewest: int, cluster: Cluster, kind: int, most: int = 0) -> str:
    """Why the job can never run on a type, with the cluster empty; "" where it can."""
    resources, gpu_type = spec.resources, cluster.types[kind]
    each = resources.worker_gpus((gpu_type.name, *gpu_type.aliases))
    if not each:
        return f"resources.gpus_per_worker says nothing of {gpu_type.name}"
    if resources.replica_gpus:
        asked, fewest = fewest, -(-fewest // each) * each
        if most and fewest > most:
            words = f"{asked}" if asked == most else f"{asked} to {most}"
            return (
                f"expected a range with a multiple of {each} GPUs, one worker on {gpu_type.name}, got {words}"
            )
    cores = (resources.cpus or 0.0) / spec.gpus * each
    memory = (resources.memory_gb or 0.0) / spec.gpus * each
    return _never_fits(cluster, kind, fewest, each, cores, memory)


@lru_cache(maxsize=1024)
def _never_fits(cluster: Cluster, kind: int, fewest: int, each: int, cores: float, memory: float) -> str:
    """The same, of workers of `each` GPUs with so many cores and GB; each submission asks."""
    name = cluster.type_names[kind]
    nodes = [node for node, of in zip(cluster.nodes, cluster.kind.tolist(), strict=True) if of == kind]
    if each > max((node.gpus for node in nodes), default=0):
        return f"resources.gpus_per_worker={each}, but a node of {name} has {cluster.gpus_per_node[kind]}"
    able = [
        node
        for node in nodes
        if (not node.cpus or node.cpus >= cores) and (not node.memory_gb or node.memory_gb >= memory)
    ]
    if not able:
        return f"{_beside(each, cores, memory)} are more than a node of {name} has"
    most_nodes = cluster.types[kind].max_nodes_per_job or len(able)
    rooms = np.sort([node.gpus // each * each for node in able])[::-1][:most_nodes]
    needed = fewest * cluster.types[kind].stand_ins
    if int(rooms.sum()) < needed:
        limit = f" on {most_nodes} nodes" if most_nodes < len(nodes) else ""
        return f"asks for {needed} GPUs of {name}, which has {int(rooms.sum())}{limit}"
    return ""


def _beside(gpus: int, cores: float, memory: float) -> str:
    """What is asked for beside the GPUs of a worker."""
    parts = [f"{cores:g} core{'s' * (cores != 1)}"] if cores else []
    parts += [f"{memory:g} GB"] if memory else []
    return f"{' and '.join(parts)} beside {gpus} GPU{'s' * (gpus != 1)}"


def _goal(spec: JobSpec) -> Goal | None:
    stop = spec.stop
    if stop is None or stop.target is None or stop.max_epochs is None:
        return None
    return Goal(stop.target, stop.max_epochs)


def rewards_of(
    spec: JobSpec, submitted_s: float, epoch_s: float, deadline_worth: float = DEADLINE_WORTH
) -> tuple[Reward, ...]:
    """By increasing deadline, all after the submission: one that has passed is put right behind it."""
    rewards: list[Reward] = []
    earliest_s = submitted_s
    for _, by, worth in _named_rewards(spec, deadline_worth):
        due_s = by.seconds(submitted_s, epoch_s)
        if due_s <= earliest_s:
            due_s = earliest_s + PASSED_S
        rewards.append(Reward(due_s, worth))
        earliest_s = due_s
    return tuple(rewards)


def _named_rewards(spec: JobSpec, deadline_worth: float = DEADLINE_WORTH) -> list[tuple[str, When, float]]:
    """What messages call it, until when, and what that is worth."""
    if spec.deadline is not None:
        return [("deadline", spec.deadline, deadline_worth)]
    return [(f"rewards, entry {number}", one.by, one.worth) for number, one in enumerate(spec.rewards, 1)]
