"""Events before and after they have their number."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from stretto.model import InputError

UNFIT = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
LONGEST_KIND, LONGEST_SUBJECT = 64, 255


@dataclass(frozen=True, slots=True)
class Unrecorded:
    """An event that is to be appended; its body is turned into JSON here, once. Raises InputError."""

    at_s: float
    kind: str
    subject: str
    body: Mapping[str, Any]
    text: str = field(init=False, repr=False, compare=False)  # the body as it is stored

    def __post_init__(self) -> None:
        """Check what columns cannot hold, and write the body as JSON."""
        if not isfinite(self.at_s):
            raise InputError(f"at_s of an event must be finite, got {self.at_s}")
        for name, value, longest in (
            ("kind", self.kind, LONGEST_KIND),
            ("subject", self.subject, LONGEST_SUBJECT),
        ):
            if len(value) > longest or UNFIT.search(value):
                raise InputError(
                    f"{name} of an event must be a line of at most {longest} characters, got {value[:80]!r}"
                )
        try:
            text = json.dumps(self.body, allow_nan=False, separators=(",", ":"))
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(f"body of event {self.kind!r} must be JSON: {error}") from None
        object.__setattr__(self, "text", text)


@dataclass(frozen=True, slots=True)
class Recorded:
    """An event of the log."""

    seq: int  # from 1, without gaps
    at_s: float
    kind: str
    subject: str
    body: dict[str, Any]


def recorded(events: Sequence[Unrecorded], after: int) -> tuple[Recorded, ...]:
    """The events as a later reader will see them: numbered, and lists where there were tuples."""
    return tuple(
        Recorded(seq, float(event.at_s), event.kind, event.subject, json.loads(event.text))
        for seq, event in enumerate(events, start=after + 1)
    )
