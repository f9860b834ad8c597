"""A file of constraints for a simulation: queues, reservations, sizes, priorities, as a service says them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf, isfinite
from pathlib import Path
from typing import Any

from stretto.clusters.entries import Entry, entry_of, items_of, read_text, read_yaml, shown
from stretto.model import (
    DEFAULT_QUEUE,
    HALF_LIFE_S,
    Cluster,
    Constraints,
    FairShare,
    InputError,
    Job,
    PriorityClass,
    Queue,
    Reservation,
    check_reservation,
    with_priority_class,
)
from stretto.model.queue import check_queue_tree, may_use, parents_of, users_of, with_quotas
from stretto.traces.workload import Workload

TOP_KEYS = ("queues", "reservations", "sizes", "priority_classes", "priorities", "fair_share")
QUEUE_KEYS = ("name", "quota_gpus", "borrow_gpus", "weight", "users", "shares", "parent")
FAIR_SHARE_KEYS = ("half_life_s", "users")
RESERVATION_KEYS = ("name", "start", "end", "gpu_type", "gpus", "nodes", "user", "queue")
CLASS_KEYS = ("name", "value", "default", "preempts")
PRIORITIES = ("preempt", "ignored")


@dataclass(frozen=True)
class ConstraintsFile:
    """What such a file says. Times are seconds since the start of the workload."""

    constraints: Constraints = field(default_factory=Constraints)
    classes: Mapping[str, PriorityClass] = field(default_factory=dict)
    queues: Mapping[str, Queue] = field(default_factory=dict)  # with a quota or without, and the default one


NOTHING_SAID = ConstraintsFile()


def read_constraints(path: Path, cluster: Cluster) -> ConstraintsFile:
    """The content of a file. Raises InputError with the place, the value and what was expected."""
    document = read_yaml(read_text(path), str(path))
    return constraints_file_of({} if document is None else document, str(path), cluster)


def constraints_file_of(document: Any, where: str, cluster: Cluster) -> ConstraintsFile:
    """The same of a document. `where` starts each message."""
    file = entry_of(document, where, TOP_KEYS)
    queues = {queue.name: queue for queue in _named(file, "queues", QUEUE_KEYS, _queue)}
    if queues:  # with the first one, as in a service
        queues.setdefault(DEFAULT_QUEUE, Queue(DEFAULT_QUEUE, is_default=True))
    try:
        check_queue_tree(queues)
    except InputError as wrong:
        raise InputError(f"{where}: queues: {wrong}") from None
    reservations: dict[str, Reservation] = {}
    for number, item in enumerate(items_of(file, "reservations"), start=1):
        entry = entry_of(item, f"{where}: reservations, entry {number}", RESERVATION_KEYS)
        reservation = _reservation(entry)
        if reservation.name in reservations:
            raise InputError(f"{entry.where}: name must differ from the others, got {reservation.name!r}")
        try:
            check_reservation(reservation, cluster, reservations)
        except InputError as wrong:
            raise InputError(f"{entry.where}: {wrong}") from None
        reservations[reservation.name] = reservation
    classes = _named(file, "priority_classes", CLASS_KEYS, _priority_class)
    defaults = [priority_class.name for priority_class in classes if priority_class.is_default]
    if len(defaults) > 1:
        raise InputError(f"{where}: priority_classes: expected one default, got {' and '.join(defaults)}")
    act = file.text("priorities", default=PRIORITIES[0])
    if act not in PRIORITIES:
        raise InputError(f"{where}: priorities must be {' or '.join(PRIORITIES)}, got {act!r}")
    sizes = entry_of(file.values.get("sizes", {}), f"{where}: sizes")
    return ConstraintsFile(
        Constraints(
            queues=with_quotas(queues, int(cluster.capacity.sum())),
            sizes={name: _sizes(sizes, name) for name in sizes.values},
            reservations=tuple(reservation for _, reservation in sorted(reservations.items())),
            priorities_act=act == PRIORITIES[0],
            parents=parents_of(queues),
            fair_share=_fair_share(file, queues),
        ),
        {priority_class.name: priority_class for priority_class in classes},
        queues,
    )


def constrained(workload: Workload, file: ConstraintsFile, where: str) -> tuple[Workload, Constraints]:
    """The workload with what the file says of its jobs, and the constraints with what the jobs say.

    Raises InputError for a priority class or a job of which there is none, and a job in a queue of others.
    """
    names = {str(job.id) for job in workload.jobs}
    for name in file.constraints.sizes:
        if name not in names:
            raise InputError(f"{where}: sizes: {workload.name} has no job {name!r}")
    jobs = [_of_queue(with_priority_class(job, file.classes), file.queues) for job in workload.jobs]
    lasting_s: dict[str, float] = {}
    if file.constraints.reservations:
        for job, truth in zip(jobs, workload.truths, strict=True):
            if not job.preemptible:
                lasting_s[job.id] = truth.duration_s if isfinite(truth.duration_s) else inf
    changed = any(new is not old for new, old in zip(jobs, workload.jobs, strict=True))
    workload = replace(workload, jobs=jobs) if changed else workload
    return workload, replace(file.constraints, lasting_s=lasting_s) if lasting_s else file.constraints


def _named(file: Entry, key: str, keys: tuple[str, ...], read: Any) -> list[Any]:
    """Entries of a list, each with a name of its own."""
    entries: list[Any] = []
    for number, item in enumerate(items_of(file, key), start=1):
        entry = entry_of(item, f"{file.where}: {key}, entry {number}", keys)
        named = read(entry)
        if any(named.name == other.name for other in entries):
            raise InputError(f"{entry.where}: name must differ from the others, got {named.name!r}")
        entries.append(named)
    return entries


def _queue(entry: Entry) -> Queue:
    return Queue(
        entry.text("name"),
        entry.count("quota_gpus", at_least=0) if "quota_gpus" in entry.values else None,
        entry.count("borrow_gpus", default=0, at_least=0),
        entry.number("weight", default=1.0, above=0.0),
        entry.texts("users") if "users" in entry.values else None,
        is_default=entry.text("name") == DEFAULT_QUEUE,
        shares=entry.number("shares", default=1.0, above=0.0),
        parent=entry.text("parent", default=""),
    )


def _fair_share(file: Entry, queues: Mapping[str, Queue]) -> FairShare | None:
    """Shares of queues and users; None where the file says nothing of fair share."""
    if "fair_share" not in file.values:
        return None
    entry = entry_of(file.values["fair_share"] or {}, f"{file.where}: fair_share", FAIR_SHARE_KEYS)
    users = entry_of(entry.values.get("users", {}), f"{entry.where}: users")
    return FairShare(
        queue_shares={name: queue.shares for name, queue in queues.items()},
        user_shares={str(name): users.number(name, default=1.0, above=0.0) for name in users.values},
        parents=parents_of(queues),
        half_life_s=entry.number("half_life_s", default=HALF_LIFE_S, above=0.0),
        limits=True,
    )


def _reservation(entry: Entry) -> Reservation:
    if "end" not in entry.values:
        raise InputError(f"{entry.where}: missing end")
    return Reservation(
        entry.text("name"),
        entry.number("start", default=0.0),
        entry.number("end", default=0.0),
        entry.text("gpu_type", default=""),
        entry.count("gpus", default=0, at_least=0),
        entry.texts("nodes"),
        entry.text("user", default=""),
        entry.text("queue", default=""),
    )


def _priority_class(entry: Entry) -> PriorityClass:
    default = entry.values.get("default", False)
    if not isinstance(default, bool):
        raise InputError(f"{entry.where}: default must be true or false, got {shown(default)}")
    preempts = entry.text("preempts", default="lower")
    if preempts not in ("lower", "never"):
        raise InputError(f"{entry.where}: preempts must be lower or never, got {preempts!r}")
    value = entry.values.get("value")
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{entry.where}: value must be a whole number, got {shown(value)}")
    return PriorityClass(entry.text("name"), value, default, preempts == "lower")


def _sizes(entry: Entry, name: str) -> tuple[int, ...]:
    value = entry.values[name]
    fits = isinstance(value, list) and all(type(one) is int and one >= 1 for one in value)
    if not value or not fits:
        raise InputError(f"{entry.where}: {name} must be a list of whole numbers >= 1, got {shown(value)}")
    return tuple(sorted(set(value)))


def _of_queue(job: Job, queues: Mapping[str, Queue]) -> Job:
    """The job in the queue that it is in, with the weight of that, unless it has one of its own."""
    if not job.queue and DEFAULT_QUEUE in queues:
        job = replace(job, queue=DEFAULT_QUEUE)
    if not may_use(queues, job.queue, job.user):
        users = " and ".join(users_of(queues, job.queue) or ()) or "nobody"
        raise InputError(f"job {job.id}: queue {job.queue} is for {users}, not for {job.user or 'no user'}")
    weight = queues[job.queue].weight if job.queue in queues else job.weight
    return replace(job, weight=weight) if job.weight == 1.0 and weight != 1.0 else job
