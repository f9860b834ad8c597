from dataclasses import dataclass, field
from math import nan

from stretto.model.equality import equal_as_tuples


@equal_as_tuples
@dataclass(frozen=True, slots=True)
class Measured:
    """What may lack a number."""

    name: str
    took_s: float = nan
    note: str = field(default="", compare=False)


@dataclass(frozen=True)
class Like:
    """Another class of the same fields."""

    name: str
    took_s: float = nan


def test_records_that_lack_the_same_number_are_equal_and_have_one_hash() -> None:
    assert Measured("a") == Measured("a")
    assert len({Measured("a"), Measured("a")}) == 1


def test_what_differs_in_a_field_that_counts_is_not_equal() -> None:
    assert Measured("a") != Measured("b")
    assert Measured("a", 1.0) != Measured("a", 2.0)
    assert Measured("a", note="x") == Measured("a", note="y")


def test_another_class_is_never_equal() -> None:
    other: object = Like("a", 1.0)
    assert Measured("a", 1.0) != other
