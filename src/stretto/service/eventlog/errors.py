"""What can go wrong with a store, beside the wrong address (InputError).

StoreError        it cannot be reached, read or written; the message says why
├── LogMoved      somebody else has written: what was to be written no longer follows on what was known
├── LedByOther    another service is the one writer
├── LeadLost      another service is, or may have been, the one writer since we were
└── LogDamaged    some of the log is missing, or is not what was written
"""

from stretto.model import InputError, StrettoError


class StoreError(StrettoError):
    """The store did not do what was asked, and nothing of it was done."""


class LogMoved(StoreError):
    """The log does not end where the writer believed; nothing was written."""

    def __init__(self, after: int, last: int) -> None:
        super().__init__(f"the log ends at {last}, not at {after}: another service writes to it")
        self.after, self.last = after, last


class LeadLost(StoreError):
    """We are not the one writer any more: what we know may be out of date, and nothing may follow from it."""

    def __init__(self) -> None:
        super().__init__("another service leads now: this one has ended, and its jobs go on")


class LedByOther(StoreError):
    """Another service holds the lead; the message names it where that is known."""

    def __init__(self, store: object, holder: str) -> None:
        who = holder or "another service"
        super().__init__(f"{store}: {who} writes to this store: end that one, or say --state or --store")


class LogDamaged(StoreError, InputError):
    """Some of the log is missing, or is not what was written. Nothing was done about it."""

    def __init__(self, store: object, what: str) -> None:
        super().__init__(
            f"{store}: the log is damaged: {what}: put its backup there, or say --begin-anew to go on without"
        )
