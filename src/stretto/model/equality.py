"""When records are equal: as their fields are that stand side by side."""

from dataclasses import fields
from operator import attrgetter
from typing import Any, TypeVar

T = TypeVar("T")


def equal_as_tuples(record: type[T]) -> type[T]:
    """Have instances of a dataclass be equal if the tuples of their fields are, whichever Python runs it.

    In tuples a thing equals itself, so a number that both lack (the same NaN) makes no difference. Up to
    Python 3.12 dataclasses are compared so. From 3.13 on they are compared field by field, where NaN differs
    from itself, and a copy of a record differs from the record. To stand above `@dataclass`.
    """
    values = attrgetter(*(entry.name for entry in fields(record) if entry.compare))  # type: ignore[arg-type]

    def __eq__(self: T, other: object) -> Any:  # noqa: N807
        if other.__class__ is not self.__class__:
            return NotImplemented
        return values(self) == values(other)

    record.__eq__ = __eq__  # type: ignore[method-assign, assignment]
    return record
