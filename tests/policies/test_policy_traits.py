"""What a policy may say of itself is declared in one place, and read through it."""

import ast
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar

import pytest

from stretto.estimate.estimators import MeasuredTables, NoEstimate, OnlineGoodput
from stretto.model import BidsForGpus, InputError, PolicyTraits, ProfilesFirst, traits_of
from stretto.policies import POLICIES, load_policy
from stretto.policies.fifo import FirstInFirstOut
from stretto.policies.registry import policy_class
from stretto.policies.sia.policy import FirstType, Sia
from stretto.scheduler.components import ChoosesBatches
from stretto.settings import settings_of

SRC = Path(__file__).parents[2] / "src"
DECLARED = {entry.name for entry in fields(PolicyTraits)} | {"traits", "profiles_first", "pays", "batches"}


@dataclass(frozen=True)
class Silent:
    """Says nothing of itself."""

    name: ClassVar[str] = "silent"


@dataclass(frozen=True)
class Wrong(FirstInFirstOut):
    """Takes a dictionary for traits."""

    traits = {"paper": "none"}  # type: ignore[assignment]  # noqa: RUF012


def test_a_policy_that_declares_no_traits_has_the_defaults() -> None:
    assert traits_of(Silent) == PolicyTraits()


def test_traits_of_another_type_are_one_clear_line() -> None:
    with pytest.raises(InputError, match=r"^policy\.traits must be a PolicyTraits, got \{'paper': 'none'\}$"):
        traits_of(Wrong())


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_and_its_class_have_the_same_traits(name: str) -> None:
    policy = load_policy(name)
    traits = traits_of(policy)
    assert traits is traits_of(policy_class(name))
    assert "" not in (traits.paper, traits.order, traits.starvation)


@pytest.mark.parametrize("name", POLICIES)
def test_settings_that_traits_name_are_settings_of_the_policy(name: str) -> None:
    component = policy_class(name)
    traits = traits_of(component)
    for given in (traits.reproducing, traits.artifact):
        assert set(settings_of(component, given, space="policy")) == set(given)


def test_sia_profiles_first_unless_its_first_type_is_chosen_blindly() -> None:
    asked = [Sia(first_type=first) for first in (FirstType.PROFILED, FirstType.BLIND)]
    assert [isinstance(policy, ProfilesFirst) and policy.profiles_first for policy in asked] == [True, False]
    assert not isinstance(FirstInFirstOut(), ProfilesFirst)


def test_only_a_policy_with_prices_in_units_of_worth_bids_for_gpus() -> None:
    assert [name for name in POLICIES if isinstance(load_policy(name), BidsForGpus)] == ["sia"]


def test_an_estimator_of_goodput_chooses_batches() -> None:
    estimators = (OnlineGoodput(), MeasuredTables(), NoEstimate())
    assert [isinstance(estimator, ChoosesBatches) for estimator in estimators] == [True, False, False]


def looked_up_by_name(source: str) -> list[str]:
    """Calls of `getattr` that read, of a policy or an estimator, what is declared."""
    calls = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(
                func=ast.Name(id="getattr" | "hasattr"), args=[holder, ast.Constant(value=name), *_]
            ):
                if name in DECLARED or ast.unparse(holder).split(".")[-1] in {"policy", "estimator"}:
                    calls.append(ast.unparse(node))
    return calls


def test_nothing_is_read_of_a_policy_that_it_does_not_declare() -> None:
    found = {path.name: looked_up_by_name(path.read_text(encoding="utf-8")) for path in SRC.rglob("*.py")}
    assert {name: calls for name, calls in found.items() if calls} == {}


@pytest.mark.parametrize(
    "call", ["getattr(policy, 'x', 1)", "getattr(self.policy, 'x')", "getattr(made, 'artifact', {})"]
)
def test_the_walk_sees_what_is_read_by_name(call: str) -> None:
    assert looked_up_by_name(call) == [call]
