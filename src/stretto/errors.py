"""What can go wrong, as one small tree.

StrettoError
├── InputError      what a person gave us is wrong; one line, exit status 2
│   └── KeyTaken    an idempotency key belongs to another job, which it names
├── BadPlan         a plan breaks a promise: a GPU given twice, a job outside its range
├── NotDeclared     a policy read a column of a view that it did not declare
├── RunFailed       one simulation of a comparison failed (experiments)
├── ServiceError    a service did not answer, or did not do what was asked (client)
├── IllegalTransition    a training was to enter a phase that cannot follow (sdk)
├── StoreError      the log cannot be reached, read or written (service.eventlog)
└── BackendUnreachable, StartRefused, NoSuchWorker    what a node answers, or does not (backends)
"""

LONGEST_LINE = 400  # of what others say, in a message of ours; chosen


class StrettoError(Exception):
    """The base of every error that this package raises on purpose."""

    exit_status = 1  # of a command that it ends


class InputError(StrettoError):
    """A file, option or value from outside is wrong; the message names it and what was expected."""

    exit_status = 2


class KeyTaken(InputError):
    """An idempotency key was used before, for another job file: `job` is the id of that job."""

    def __init__(self, message: str, job: str) -> None:
        super().__init__(message)
        self.job = job


class BadPlan(StrettoError):
    """A decision broke an invariant of the cluster. A bug of a policy or placer, never of the user."""


class NotDeclared(StrettoError):
    """A policy looked at something that it did not say it needs to know."""


def one_line(failure: BaseException) -> str:
    """What an exception of other code says, without its line breaks."""
    return " ".join(str(failure).split())[:LONGEST_LINE]
