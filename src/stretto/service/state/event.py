"""A fact, as the log keeps it: a frozen value whose fields are plain JSON."""

from dataclasses import dataclass, fields
from typing import Any, ClassVar


@dataclass(frozen=True)
class Event:
    """The base of all; `subject` names the field that says whom it is about."""

    subject: ClassVar[str] = ""


def body_of(event: Event) -> dict[str, Any]:
    """The fields as JSON values."""
    return {entry.name: getattr(event, entry.name) for entry in fields(event)}


def subject_of(event: Event) -> str:
    """Whom it is about; "" for the service itself."""
    return str(getattr(event, event.subject)) if event.subject else ""
