"""Whether some of the log is lost: a start goes on without it only where it is told to, and says what."""

import logging
import secrets
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from stretto.service.eventlog import Gap, Reached, Store
from stretto.service.reconcile.worker_env import TOKEN
from stretto.service.state.events import Incarnated
from stretto.service.state.state import State

MOST_NAMED = 10  # gaps in one line; chosen
NAME_BYTES = 3  # of an incarnation; chosen: two restored copies of one backup hardly ever draw the same
UNSEEN_IDS = 1_000  # that a log may have given since it was copied, where nothing tells; chosen

log = logging.getLogger(__name__)


def what_is_lost(store: Store, reached: Reached | None, begin_anew: bool) -> list[str]:
    """What is given up of the log, a line each; raises LogDamaged unless the operator said to begin anew.

    reached: how far it had come, as far as that is known.
    """
    if not begin_anew:
        store.check_whole(reached)
        return []
    last, gaps = store.last(), store.damage()
    store.go_on_without(gaps)
    lines = []
    if reached is not None and reached.seq > last:
        lines.append(f"{Gap(last + 1, reached.seq).words} of the log are lost, and jobs that they told of")
    if gaps:
        more = f", and {len(gaps) - MOST_NAMED} more" if len(gaps) > MOST_NAMED else ""
        named = ", ".join(gap.words for gap in gaps[:MOST_NAMED])
        lines.append(f"{named}{more}: missing or damaged, and left out from now on")
    losses = [f"begun anew: {line}" for line in lines] or ["begun anew: nothing of the log is lost"]
    for line in losses:
        log.warning("%s", line)
    return losses


def incarnated(state: State, reached: Reached | None, workers: Iterable[str], why: str) -> Incarnated | None:
    """What to record where ids may have been given that the log does not know; None where it knows all.

    reached: how far the log had come, as far as that is known. workers: ids of all workers that nodes or
    disks show. why: the log is an older copy, or has lost something. "" where only what is shown may tell.
    """
    last_id = max(
        (0 if reached is None else reached.largest_id, *(_number(worker) for worker in workers)), default=0
    )
    if reached is None and why:
        last_id = max(last_id, state.largest_id + UNSEEN_IDS)
    if last_id > state.largest_id:
        why = why or "jobs were found that the log does not know"
    elif not why and any(_is_later(state, worker) for worker in workers):
        why = "attempts were found that the log does not know"
    return Incarnated(secrets.token_hex(NAME_BYTES), last_id, why, ends_elastic=True) if why else None


def workers_on_disk(agent: Path, checkpoints: Path) -> Iterator[str]:
    """Ids of workers that an agent's directory tells of, and of jobs that checkpoints tell of."""
    for folder in ("runs", "forgotten"):
        with suppress(OSError):
            yield from (path.name for path in (agent / folder).iterdir())
    with suppress(OSError):
        yield from (path.name for path in checkpoints.iterdir() if (path / f"{TOKEN}{path.name}").exists())


def _number(worker: str) -> int:
    """Of the job or array whose worker it is; 0 for none."""
    own = worker.partition(".")[0].partition("_")[0]
    return int(own) if own.isascii() and own.isdecimal() else 0


def _is_later(state: State, worker: str) -> bool:
    """Whether it is of an attempt that the log does not know of a job that it knows."""
    job, _, rest = worker.partition(".")
    attempt, record = rest.partition(".")[0].partition("-")[0], state.jobs.get(job)
    return record is not None and attempt.isdecimal() and int(attempt) > record.attempt
