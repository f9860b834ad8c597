"""Whoever a job file names under `notify` is told what becomes of the job: one POST of JSON for each moment.

Beside everything else, and without promises: an address that does not answer is tried three times within a
minute, and what was not told when the service ended is never told. The log knows it all the same.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from stretto.live.history.ledger import Ledger
from stretto.live.jobfile.parts import Moment
from stretto.live.state.events import AttemptClosed, Ended, Event, WorkersRan
from stretto.live.state.records import JobRecord

PAUSES_S = (1.0, 15.0)  # before it is tried again; chosen
ANSWER_S = 10.0
AT_ONCE = 32
MOST_WAITING = 10_000  # notices; chosen: some megabytes

log = logging.getLogger(__name__)

ENDS: Mapping[str, Moment] = {
    "COMPLETED": Moment.COMPLETED,
    "FAILED": Moment.FAILED,
    "CANCELLED": Moment.CANCELLED,
    "TIMEOUT": Moment.TIMEOUT,
}


@dataclass
class Notifier:
    """Notices on their way. pauses_s: before an address that did not answer well is tried again."""

    ledger: Ledger
    pauses_s: Sequence[float] = PAUSES_S
    waiting: "asyncio.Queue[tuple[str, dict[str, Any]]]" = field(
        default_factory=lambda: asyncio.Queue(MOST_WAITING)
    )

    def __post_init__(self) -> None:
        """Listen to what happens."""
        self.ledger.listeners.append(self.heard)

    def heard(self, told: Sequence[tuple[int, Event]]) -> None:
        """Note what is to be told of."""
        state = self.ledger.state
        for _, event in told:
            record = state.jobs.get(str(getattr(event, "job", "")))
            if record is None or not record.spec.notify:
                continue
            moment = moment_of(event, record)
            addresses = [one.url for one in record.spec.notify if moment in one.on]
            body = notice_of(record, moment, state.unix_s + state.at_s) if moment and addresses else {}
            for url in addresses:
                if self.waiting.full():
                    log.warning("too many notices wait: nobody is told that job %s is %s", record.id, moment)
                else:
                    self.waiting.put_nowait((url, body))

    async def notify_for_ever(self) -> None:
        """Tell everybody, until cancelled. Nobody is led elsewhere, and answers are not read."""
        async with (
            httpx.AsyncClient(timeout=ANSWER_S, trust_env=False) as client,
            asyncio.TaskGroup() as group,
        ):
            for _ in range(AT_ONCE):
                group.create_task(self._tell_for_ever(client))

    async def _tell_for_ever(self, client: httpx.AsyncClient) -> None:
        while True:
            url, body = await self.waiting.get()
            for pause_s in (*self.pauses_s, None):
                why = await _told(client, url, body)
                if not why:
                    break
                if pause_s is None:  # without the address, which may hold a secret
                    log.warning("job %s: whoever is to be told cannot be: %s", body["job"], why)
                else:
                    await asyncio.sleep(pause_s)


def moment_of(event: Event, record: JobRecord) -> Moment | None:
    """What of all that happens is such a moment; the record is as it stands afterwards."""
    match event:
        case WorkersRan() if any(name.endswith(".0") for name in event.workers):
            return Moment.STARTED
        case AttemptClosed() if not record.has_ended and not record.ending:
            return Moment.PREEMPTED
        case Ended():
            return ENDS.get(event.state)
    return None


def notice_of(record: JobRecord, moment: Moment, unix_s: float) -> dict[str, Any]:
    """What is told."""
    return {
        "moment": moment.value,
        "job": record.id,
        "name": record.spec.name,
        "array": record.array,
        "index": record.index,
        "user": record.user,
        "attempt": record.attempt,
        "status": record.status,
        "why": record.why,
        "unix_s": unix_s,
    }


async def _told(client: httpx.AsyncClient, url: str, body: Mapping[str, Any]) -> str:
    """Why somebody could not be told; "" where they were."""
    try:
        async with client.stream("POST", url, json=body) as answer:
            return "" if answer.is_success else f"HTTP status {answer.status_code}"
    except Exception as wrong:  # of any kind: an address is somebody's text, and must not end the service
        return type(wrong).__name__
