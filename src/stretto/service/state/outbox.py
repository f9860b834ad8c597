"""Webhooks that are still to be delivered: they follow from the log, so that a restart loses none."""

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from stretto.jobfile.parts import WebhookEvent
from stretto.service.state.budgets import Budget
from stretto.service.state.events import BudgetReached
from stretto.service.state.job_events import AttemptClosed, Ended, Event, WorkersRan
from stretto.service.state.records import JobRecord
from stretto.service.state.usage import US_PER_S

MOST_PENDING = 1_000  # of one owner; chosen: some hundred kB

ENDS: Mapping[str, WebhookEvent] = {
    "COMPLETED": WebhookEvent.COMPLETED,
    "FAILED": WebhookEvent.FAILED,
    "CANCELLED": WebhookEvent.CANCELLED,
    "TIMEOUT": WebhookEvent.TIMEOUT,
}

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Delivery:
    """One request that is to be made, by an id that stays the same when it is made again."""

    id: str
    job: str  # "": it is about a budget
    owner: str
    url: str
    body: Mapping[str, Any]
    unix_s: float

    @property
    def about(self) -> str:
        """What it tells of, in words."""
        return f"job {self.job}" if self.job else f"budget {self.body.get('budget', '')}"


@dataclass
class Outbox:
    """Deliveries by id, the oldest first."""

    deliveries: dict[str, Delivery] = field(default_factory=dict)
    pending: Counter[str] = field(default_factory=Counter)  # of each owner

    def note(self, event: Event, record: JobRecord, prefix: str, unix_s: float) -> None:
        """Add what an event that was folded makes due. prefix: of ids, by the event's place in the log."""
        moment = moment_of(event, record) if record.spec.notify else None
        if moment is None:
            return
        if isinstance(event, Ended):
            self._take_back(record, unix_s)
        for place, webhook in enumerate(record.spec.notify):
            if moment in webhook.on:
                body = body_of(record, moment, unix_s)
                name = f"{prefix}.{place}"
                self._add(Delivery(name, record.id, record.user, webhook.url, body, unix_s))

    def note_budget(self, event: BudgetReached, budget: Budget, prefix: str, unix_s: float) -> None:
        """Add what is told of a budget that has come to a level."""
        body = budget_body_of(event, budget, unix_s)
        for place, url in enumerate(budget.notify):
            self._add(Delivery(f"{prefix}.{place}", "", budget.set_by, url, body, unix_s))

    def _add(self, delivery: Delivery) -> None:
        if self.pending[delivery.owner] >= MOST_PENDING:
            log.warning("too many webhooks of %s wait: none is sent for %s", delivery.owner, delivery.about)
            return
        self.deliveries[delivery.id] = delivery
        self.pending[delivery.owner] += 1

    def _take_back(self, record: JobRecord, unix_s: float) -> None:
        """What closed the last attempt has ended the job, too: it was not preempted.

        Both are written together, and nothing is sent before both are folded.
        """
        newest = takewhile(lambda each: each.unix_s == unix_s, reversed(self.deliveries.values()))
        for delivery in list(newest):
            if delivery.job == record.id and delivery.body["moment"] == WebhookEvent.PREEMPTED:
                self.done(delivery.id)

    def done(self, name: str) -> None:
        """One was delivered, or given up."""
        delivery = self.deliveries.pop(name, None)
        if delivery is not None:
            self.pending[delivery.owner] -= 1
            if not self.pending[delivery.owner]:
                del self.pending[delivery.owner]


def moment_of(event: Event, record: JobRecord) -> WebhookEvent | None:
    """What of all that happens is such a moment; the record is as it stands afterwards."""
    match event:
        case WorkersRan() if any(name.endswith(".0") for name in event.workers):
            return WebhookEvent.STARTED
        case AttemptClosed() if not record.has_ended and not record.ending:
            return WebhookEvent.PREEMPTED
        case Ended():
            return ENDS.get(event.state)
    return None


def budget_body_of(event: BudgetReached, budget: Budget, unix_s: float) -> dict[str, Any]:
    """What is told of a budget. Times are Unix times."""
    return {
        "moment": f"budget_{event.level}",
        "budget": budget.name,
        "user": budget.user,
        "queue": budget.queue,
        "used": event.used,
        "amount": budget.amount,
        "unit": budget.unit.value,
        "from_s": event.from_us / US_PER_S,
        "until_s": event.until_us / US_PER_S,
        "unix_s": unix_s,
    }


def body_of(record: JobRecord, moment: WebhookEvent, unix_s: float) -> dict[str, Any]:
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
