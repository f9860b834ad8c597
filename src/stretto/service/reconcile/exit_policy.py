"""How an attempt ended, by the ends of its workers, and what follows for the job."""

from dataclasses import dataclass

from stretto.service.state.events import Ended, Event, Requeued
from stretto.service.state.records import KILLED, TERMINATED, JobRecord, Worker, WorkerPhase, orphaned_by

FIRST_PAUSE_S, LONGEST_PAUSE_S = 10.0, 600.0  # before a failed attempt is tried again; doubled each time
LOST_PAUSE_S = 1.0  # before a lost one is
MAX_CRASH_LOOPS = 3  # times in a row that a job may be killed without getting further; the last is a failure


@dataclass(frozen=True)
class AttemptEnd:
    """What became of an attempt."""

    outcome: str  # done, failed, lost, left
    status: int | None
    why: str = ""


def ending_of(record: JobRecord) -> AttemptEnd | None:
    """What the workers that have ended say of the attempt; None while it may go on.

    What we stopped says nothing, unless the training itself has reported that it was finished. Who was not
    or no more in the generation leaves with status 0; where all are to leave, those count who trained last.
    """
    members = record.members.workers
    latest = max((worker.joined for worker in record.workers.values()), default=0)
    last = [worker for worker in record.workers.values() if worker.joined == latest]
    trainers = [record.workers[name] for name in members] if members else last
    finished = bool(record.learned.latest.get("finished"))
    ended = [worker for worker in trainers if worker.life is WorkerPhase.ENDED]
    own = [worker for worker in ended if finished or not worker.stopped]
    for outcome, of in (("failed", _failed), ("lost", _killed), ("lost", _lost)):
        for worker in own:
            if of(worker):
                return _judged(record, AttemptEnd(outcome, worker.status, _words(worker)))
    if trainers and len(own) == len(trainers):
        return AttemptEnd("done", 0)
    if trainers and len(ended) == len(trainers):
        return AttemptEnd("left", None)
    return None


def _judged(record: JobRecord, end: AttemptEnd) -> AttemptEnd:
    """Whose fault it was: a node's, which excuses all, or the job's own where it is killed over and over."""
    if node := orphaned_by(record):
        return AttemptEnd("lost", end.status, f"node {node} was lost")
    times = record.crash_loops + 1
    if (
        end.outcome == "lost"
        and end.status == KILLED
        and not record.made_progress
        and times >= MAX_CRASH_LOOPS
    ):
        why = f"killed {times} times in a row without a checkpoint or a further step; is it out of memory?"
        return AttemptEnd("failed", KILLED, why)
    return end


def what_follows(record: JobRecord, end: AttemptEnd | None, now_s: float) -> list[Event]:
    """Events by which the job ends or waits anew, once none of its workers is left."""
    status = end.status if end else None
    if end is not None and end.outcome == "done":
        return [Ended(record.id, "COMPLETED", 0)]
    if record.ending:
        return [Ended(record.id, record.ending, status, record.why)]
    if end is None or end.outcome == "left":
        return []
    if end.outcome == "lost":
        pause_s = min(LOST_PAUSE_S * 2.0**record.losses, LONGEST_PAUSE_S)
        return [Requeued(record.id, now_s + pause_s, end.why)]
    restart = record.spec.restart
    again = record.failures < restart.max and (not restart.on_exit or status in restart.on_exit)
    if not again:
        return [Ended(record.id, "FAILED", status, end.why)]
    pause_s = min(FIRST_PAUSE_S * 2.0**record.failures, LONGEST_PAUSE_S)
    return [Requeued(record.id, now_s + pause_s, end.why)]


def _failed(worker: Worker) -> bool:
    return worker.status not in (0, TERMINATED, KILLED)


def _killed(worker: Worker) -> bool:
    return worker.status == KILLED


def _lost(worker: Worker) -> bool:
    return worker.status in (TERMINATED, KILLED)


def _words(worker: Worker) -> str:
    said = f"worker {worker.id} ended with status {worker.status}"
    return f"{said}: {worker.why}" if worker.why else said
