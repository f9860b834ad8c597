"""Priorities with names."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from stretto.model.errors import InputError
from stretto.model.job import Job

LARGEST_PRIORITY = 1_000_000  # either way; chosen


@dataclass(frozen=True, slots=True)
class PriorityClass:
    """A named priority."""

    name: str
    value: int  # larger is sooner
    is_default: bool = False  # of jobs that say nothing
    preempts: bool = True  # False: its jobs go ahead in order, but take only free GPUs

    def __post_init__(self) -> None:
        """Check the value."""
        if not -LARGEST_PRIORITY <= self.value <= LARGEST_PRIORITY:
            raise InputError(
                f"priority class {self.name}: value must be from {-LARGEST_PRIORITY} to {LARGEST_PRIORITY}, "
                f"got {self.value}"
            )


def with_priority_class(job: Job, classes: Mapping[str, PriorityClass]) -> Job:
    """The job with the priority of its class, or of the default class where it says nothing.

    Raises InputError for a class that there is not.
    """
    name = job.priority_class
    if not name:
        default = next(
            (priority_class for priority_class in classes.values() if priority_class.is_default), None
        )
        if default is None or job.priority:
            return job
        return replace(job, priority=default.value, preempts=default.preempts)
    if name not in classes:
        expectation = f"expected one of {', '.join(sorted(classes))}" if classes else "and there are none"
        raise InputError(f"job {job.id}: unknown priority class {name!r}, {expectation}")
    return replace(job, priority=classes[name].value, preempts=classes[name].preempts)
