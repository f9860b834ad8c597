"""A record that is filled at once is like any other frozen dataclass."""

from dataclasses import FrozenInstanceError, dataclass, field, replace

import pytest

from stretto.model.records import filled_at_once


@filled_at_once
@dataclass(frozen=True, eq=False)
class Parcel:
    """Something to fill."""

    gpus: int
    name: str = "plain"
    labels: dict[str, str] = field(default_factory=dict)


def test_it_holds_what_it_is_given_and_defaults_for_the_rest() -> None:
    parcel = Parcel(2, name="large")
    assert (parcel.gpus, parcel.name, parcel.labels) == (2, "large", {})
    assert Parcel(gpus=1).name == "plain"


def test_each_has_a_new_value_of_a_factory() -> None:
    assert Parcel(1).labels is not Parcel(1).labels


@pytest.mark.parametrize(("values", "message"), [
    pytest.param({}, "missing 1 required positional argument: 'gpus'", id="nothing is left out"),
    pytest.param({"gpus": 1, "cpus": 2}, "unexpected keyword argument 'cpus'", id="nothing is made up"),
])  # fmt: skip
def test_its_parameters_are_checked(values: dict[str, int], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Parcel(**values)  # type: ignore[arg-type]


def test_it_stays_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        Parcel(1).gpus = 2  # type: ignore[misc]


def test_another_one_is_made_of_it() -> None:
    parcel = replace(Parcel(1, "large"), gpus=4)
    assert (parcel.gpus, parcel.name) == (4, "large")
