"""What events of workers and generations change in the record of their job."""

from collections.abc import Mapping
from dataclasses import replace
from math import inf, isfinite, isnan, nan
from typing import Any

from stretto.model import Batch, Cluster
from stretto.service.state import job_events as happened
from stretto.service.state.attempts import note_asked, note_begin, note_end
from stretto.service.state.job_events import Event
from stretto.service.state.records import (
    KILLED,
    NOBODY,
    JobRecord,
    Membership,
    Worker,
    WorkerPhase,
    incarnation_in,
    orphaned_by,
)
from stretto.service.state.reported_metrics import with_report

# The state machine of a worker: what an event makes of it, by its phase. An event that is not in
# the row of a phase changes nothing there: it is late, or comes a second time. "ready" may come before "ran":
# a worker may say that it is ready before the backend is asked again.
#   ran      the backend shows it running                called   the newest generation lists it
#   ready    it has said that it can take part           joined   it trains in the newest generation
#   stopped  we have asked it to end                     dropped  the newest generation does not list it
#   ended    none of its processes is left
NEXT_PHASE: Mapping[WorkerPhase, Mapping[str, WorkerPhase]] = {
    WorkerPhase.WANTED: {
        "ran": WorkerPhase.RUNNING,
        "ready": WorkerPhase.READY,
        "stopped": WorkerPhase.STOPPING,
        "ended": WorkerPhase.ENDED,
    },
    WorkerPhase.RUNNING: {
        "ready": WorkerPhase.READY,
        "stopped": WorkerPhase.STOPPING,
        "ended": WorkerPhase.ENDED,
    },
    WorkerPhase.READY: {
        "called": WorkerPhase.JOINING,
        "joined": WorkerPhase.LEFT,  # late: it was called, and the next generation has dropped it since
        "stopped": WorkerPhase.STOPPING,
        "ended": WorkerPhase.ENDED,
    },
    WorkerPhase.JOINING: {
        "joined": WorkerPhase.TRAINING,
        "dropped": WorkerPhase.LEFT,  # a newcomer that has never trained is READY again
        "stopped": WorkerPhase.STOPPING,
        "ended": WorkerPhase.ENDED,
    },
    WorkerPhase.TRAINING: {
        "called": WorkerPhase.JOINING,
        "dropped": WorkerPhase.LEFT,
        "stopped": WorkerPhase.STOPPING,
        "ended": WorkerPhase.ENDED,
    },
    WorkerPhase.LEFT: {
        "called": WorkerPhase.JOINING,
        "stopped": WorkerPhase.STOPPING,
        "ended": WorkerPhase.ENDED,
    },
    WorkerPhase.STOPPING: {"ended": WorkerPhase.ENDED},
    WorkerPhase.ENDED: {},
}

UNSEEN_GENERATIONS = 1_000_000  # that a log may have lost; chosen: more than there ever are
LISTENED_S = 60.0  # a worker silent for so long does not speak; chosen: an import takes up to 15 s


def fold_worker_event(record: JobRecord, event: Event, now_s: float, cluster: Cluster | None) -> bool:
    """Fold one; whether the record may have changed. Of ended jobs nothing changes."""
    if record.has_ended:
        return False
    match event:
        case happened.WorkersWanted():
            _wanted(record, event, cluster, now_s)
        case happened.WorkersRan():
            for name in event.workers:
                worker = record.workers.get(name)
                if worker is not None and not worker.has_begun:
                    worker.began_s = now_s
                    worker.life = NEXT_PHASE[worker.life].get("ran", worker.life)
            _note_start(record, now_s)
        case happened.WorkerReady():
            _ready(record, event.worker)
            _note_start(record, now_s)
        case happened.WorkersReady():
            for name in event.workers:
                _ready(record, name)
            _note_start(record, now_s)
        case happened.WorkerStopped():
            _stopped(record, event.worker, now_s)
            note_asked(record)
        case happened.WorkersStopped():
            for name in event.workers:
                _stopped(record, name, now_s)
            note_asked(record)
        case happened.WorkerEnded():
            _ended(record, event.worker, event.status, event.why)
        case happened.WorkersEnded():
            for ending in event.workers:
                why, orphaned = ending.get("why", ""), ending.get("orphaned", "")
                _ended(record, ending["id"], ending["status"], why, orphaned)
        case happened.AttemptClosed():
            _closed(record, event, now_s)
        case happened.Generation():
            if event.attempt == record.attempt and event.number > record.members.number:
                batch = Batch.from_json(event.batch) if event.batch else None
                record.members = Membership(event.number, event.workers, event.source, "", now_s, batch)
                note_asked(record)
        case happened.StoreOpened():
            if event.number == record.members.number:
                record.members = replace(record.members, store=event.address)
        case happened.Joined():
            _joined(record, event.worker, event.number, event.lost_s)
            _note_start(record, now_s)
        case happened.WorkersJoined():
            for name in event.workers:
                _joined(record, name, event.number, event.lost_s)
            _note_start(record, now_s)
        case happened.Reported():
            report = event.report
            if mixes_types(record):  # a step on several types says nothing of any one
                report = {key: value for key, value in report.items() if key != "points"}
            record.learned = with_report(record.learned, report, kind_of(record), now_s, event.metrics_kept)
            if event.report.get("in_place") is False:
                record.uses_sdk = False
            _note_progress(record, event.report)
        case happened.Checkpointed():
            record.made_progress = True
            record.checkpoint, record.checkpoint_step = event.path, event.step
        case _:
            return False
    return True


def leave_unseen(record: JobRecord, now_s: float) -> None:
    """Have an attempt end that may be in a generation which the log has lost: all are to save and leave."""
    record.end_why = "the service went on from an older log"
    record.members = Membership(record.members.number + UNSEEN_GENERATIONS, (), at_s=now_s)
    for worker in record.alive:
        worker.stopped, worker.asked_s = True, now_s


def _wanted(record: JobRecord, event: happened.WorkersWanted, cluster: Cluster | None, now_s: float) -> None:
    assert cluster is not None
    workers = [  # all of them before anything changes: one that cannot be leaves the record as it is
        Worker(wanted["id"], record.id, event.attempt, node, int(wanted["mask"]), int(cluster.kind[node]))
        for wanted in event.workers
        for node in [cluster.node_index[wanted["node"]]]
    ]
    if event.attempt > record.attempt:  # the first of a new attempt: nothing of the last one is left
        note_begin(record, event.attempt, now_s)
        record.attempt, record.workers, record.next_worker = event.attempt, {}, 0
        record.members, record.port, record.status = NOBODY, event.port, None
        record.why, record.failed_joiners = "", 0
        record.starts_s = now_s
        incarnation = incarnation_in(workers[0].id) if workers else ""
        if incarnation != (record.incarnations[-1][1] if record.incarnations else ""):
            record.incarnations = (*record.incarnations, (event.attempt, incarnation))
    record.workers |= {worker.id: worker for worker in workers}
    record.next_worker += len(workers)


def _closed(record: JobRecord, event: happened.AttemptClosed, now_s: float) -> None:
    if event.attempt <= record.closed:
        return
    if is_found_silent(record, now_s):
        record.uses_sdk = False
    note_end(record, event)
    record.stop_s = now_s - _asked_s(record)
    record.closed, record.status, record.members = event.attempt, event.status, NOBODY
    record.failures += event.outcome == "failed"
    record.losses += event.outcome == "lost"
    if event.status == KILLED and event.outcome != "done" and not orphaned_by(record):
        record.crash_loops = 0 if record.made_progress else record.crash_loops + 1
        record.made_progress = False


def is_found_silent(record: JobRecord, now_s: float) -> bool:
    """Whether the end of its attempt shows, for the first time, that its workers do not use the SDK."""
    return record.uses_sdk is None and any(
        now_s >= worker.began_s + LISTENED_S for worker in record.workers.values()
    )


def _asked_s(record: JobRecord) -> float:
    """When an attempt was asked to end; NaN: it ended by itself."""
    asked_s = min((worker.asked_s for worker in record.workers.values()), default=inf)
    if record.members.leaves and record.members.number:
        asked_s = min(asked_s, record.members.at_s)
    return asked_s if isfinite(asked_s) else nan


def _note_start(record: JobRecord, now_s: float) -> None:
    """A job that was stopped trains again, once all its workers do: what both took is known now.

    Of a script that does not use the SDK it is only known when its processes are there.
    """
    if not isnan(record.stop_s) and all_train(record):
        took_s = record.stop_s + now_s - record.starts_s
        record.suspensions, record.stop_s = record.suspensions.with_one(took_s), nan


def all_train(record: JobRecord) -> bool:
    """Whether all workers of the current attempt train, as far as that is known."""
    members = record.members
    if members.number:
        return all(record.workers[name].joined >= members.number for name in members.workers)
    if record.uses_sdk:  # of a fixed size: its workers are not called into generations
        is_elastic = record.spec.elastic is not None
        return not is_elastic and all(worker.life is WorkerPhase.READY for worker in record.workers.values())
    return all(worker.has_begun for worker in record.workers.values())


def _note_progress(record: JobRecord, report: Mapping[str, Any]) -> None:
    for key in ("step", "epoch"):
        reached = report.get(key)
        if isinstance(reached, int | float) and reached > record.highest_reported.get(key, 0):
            record.highest_reported[key], record.made_progress = reached, True


def _ready(record: JobRecord, name: str) -> None:
    worker = record.workers.get(name)
    if worker is not None and (phase := NEXT_PHASE[worker.life].get("ready")) is not None:
        worker.life, record.uses_sdk = phase, True


def _stopped(record: JobRecord, name: str, now_s: float) -> None:
    worker = record.workers.get(name)
    if worker is not None and not worker.stopped:
        worker.stopped, worker.asked_s = True, now_s


def _ended(record: JobRecord, name: str, status: int, why: str, orphaned: str = "") -> None:
    worker = record.workers.get(name)
    if worker is None or (phase := NEXT_PHASE[worker.life].get("ended")) is None:
        return
    # A newcomer that ends before it has taken part, while others train, has spoiled a resize.
    record.failed_joiners += not worker.has_trained and record.members.have_begun and not worker.stopped
    worker.life, worker.status, worker.why = phase, status, why
    worker.orphaned = worker.orphaned or orphaned
    if why:
        record.why = why


def _joined(record: JobRecord, name: str, number: int, lost_s: float) -> None:
    worker = record.workers.get(name)
    if worker is None or number <= worker.joined:
        return
    first = not worker.has_trained
    worker.joined = number
    if number > 1 and not first and name == record.members.source:
        record.accounting.switches += 1
        if not isnan(lost_s):
            record.accounting.lost_s += lost_s
            record.resizes = record.resizes.with_one(lost_s)


def mixes_types(record: JobRecord) -> bool:
    """Whether workers on several GPU types train together, for longer than a move takes."""
    workers = [record.workers[name] for name in record.members.workers if name in record.workers]
    return record.job.heterogeneous and len({worker.kind for worker in workers}) > 1


def kind_of(record: JobRecord) -> int:
    """The GPU type on which rank 0 reports."""
    for name in record.members.workers:
        if name in record.workers:
            return record.workers[name].kind
    return next((worker.kind for worker in record.alive), 0)
