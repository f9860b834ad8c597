"""Webhooks: one POST of JSON for each moment of a job that its file asks to be told of.

Beside everything else, and without promises: an address that does not answer is tried three times within a
minute, and what was not delivered when the service ended never is. The log knows it all the same.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from stretto.live.history.ledger import Ledger
from stretto.live.jobfile.parts import Moment
from stretto.live.pool import Turns
from stretto.live.state.events import AttemptClosed, Ended, Event, WorkersRan
from stretto.live.state.records import JobRecord
from stretto.live.webhooks.targets import Targets
from stretto.model import InputError

PAUSES_S = (1.0, 15.0)  # before it is tried again; chosen
ANSWER_S = 10.0
AT_ONCE, EACH = 256, 4  # deliveries of all owners, and of one; chosen
MOST_PENDING = 1_000  # of one owner; chosen: some hundred kB

log = logging.getLogger(__name__)

ENDS: Mapping[str, Moment] = {
    "COMPLETED": Moment.COMPLETED,
    "FAILED": Moment.FAILED,
    "CANCELLED": Moment.CANCELLED,
    "TIMEOUT": Moment.TIMEOUT,
}


@dataclass(frozen=True)
class Delivery:
    """One request that is to be made."""

    owner: str
    url: str
    body: Mapping[str, Any]


@dataclass
class Webhooks:
    """Deliveries on their way. Owners take turns: slow targets of one hold up only their own.

    pauses_s: before an address that did not answer well is tried again.
    """

    ledger: Ledger
    targets: Targets = field(default_factory=Targets)
    pauses_s: Sequence[float] = PAUSES_S
    _turns: Turns = field(default_factory=lambda: Turns(AT_ONCE, MOST_PENDING, EACH))
    pending: Counter[str] = field(default_factory=Counter)  # deliveries by owner
    _new: "asyncio.Queue[Delivery]" = field(default_factory=asyncio.Queue)

    def __post_init__(self) -> None:
        """Listen to what happens."""
        self.ledger.listeners.append(self.heard)

    def heard(self, told: Sequence[tuple[int, Event]]) -> None:
        """Note what is to be delivered."""
        state = self.ledger.state
        for _, event in told:
            record = state.jobs.get(str(getattr(event, "job", "")))
            if record is None or not record.spec.notify:
                continue
            moment = moment_of(event, record)
            addresses = [one.url for one in record.spec.notify if moment in one.on]
            body = body_of(record, moment, state.unix_s + state.at_s) if moment and addresses else {}
            for url in addresses:
                self._add(Delivery(record.user, url, body))

    def _add(self, one: Delivery) -> None:
        if self.pending[one.owner] >= MOST_PENDING:
            log.warning("too many webhooks of %s wait: none is sent for job %s", one.owner, one.body["job"])
            return
        self.pending[one.owner] += 1
        self._new.put_nowait(one)

    async def deliver_for_ever(self) -> None:
        """Deliver until cancelled. Nobody is led elsewhere, and answers are not read."""
        async with (
            httpx.AsyncClient(timeout=ANSWER_S, trust_env=False) as client,
            asyncio.TaskGroup() as group,
        ):
            while True:
                group.create_task(self._deliver(client, await self._new.get()))

    async def _deliver(self, client: httpx.AsyncClient, one: Delivery) -> None:
        try:
            for pause_s in (*self.pauses_s, None):
                async with self._turns.turn(one.owner):
                    why = await self._try(client, one)
                if not why:
                    return
                if pause_s is not None:
                    await asyncio.sleep(pause_s)
            # Without the address, which may hold a secret.
            log.warning("job %s: its webhook cannot be delivered: %s", one.body["job"], why)
        finally:
            self.pending[one.owner] -= 1
            if not self.pending[one.owner]:
                del self.pending[one.owner]

    async def _try(self, client: httpx.AsyncClient, one: Delivery) -> str:
        """Why it could not be delivered; "" where it was."""
        try:
            target = await self.targets.resolve(one.url)  # once more: a name may lead elsewhere by now
            async with (
                asyncio.timeout(ANSWER_S),
                client.stream(
                    "POST",
                    target.url,
                    json=one.body,
                    headers={"host": target.host},
                    extensions={"sni_hostname": target.name},
                ) as answer,
            ):
                return "" if answer.is_success else f"HTTP status {answer.status_code}"
        except InputError as wrong:
            return str(wrong)
        except Exception as wrong:  # of any kind: an address is somebody's text, and must not end the service
            return type(wrong).__name__


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


def body_of(record: JobRecord, moment: Moment, unix_s: float) -> dict[str, Any]:
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
