"""The fields of a dataclass as settings: parsed, held to their ranges, and described."""

import re
from dataclasses import dataclass, fields, replace
from enum import Enum
from math import inf, nan
from typing import Any, Literal, get_type_hints

import pytest

from stretto.model import InputError
from stretto.policies import POLICIES, load_policy
from stretto.policies.registry import policy_class
from stretto.settings import (
    RANGE,
    CheckedSettings,
    SettingDescription,
    describe_settings,
    setting,
    setting_fields,
    settings_of,
    texts_of,
)


class Colour(Enum):
    RED = "red"


@dataclass(frozen=True)
class Knobs:
    flag: bool = False
    count: int = 1
    ratio: float = 0.5
    word: str = "x"
    bounds: tuple[float, ...] = ()
    pair: tuple[int, str] = (1, "a")
    period_s: float | None = None
    mode: Literal["fast", "exact"] = "fast"
    colour: Colour = Colour.RED


@dataclass(frozen=True)
class Ranged(CheckedSettings, space="ranged"):
    """Every kind of range."""

    above: float = setting(1.0, above=0)  # seconds
    share: float = setting(0.5, at_least=0, below=1)
    # how many, and a comment
    # that takes two lines
    count: int = setting(2, at_least=1, at_most=9)
    power: float = setting(-0.5, at_least=-16, at_most=16, nonzero=True)
    bounds: tuple[float, ...] = setting((1.0, 2.0), above=0, increasing=True)
    period_s: float | None = setting(None, above=0)
    unit_s: float = setting(2.0, above=0)
    lease_s: float = setting(6.0, above=0, multiple_of="unit_s")
    free: int = -1


@pytest.mark.parametrize(
    ("field", "given", "value"),
    [
        ("flag", "yes", True),
        ("flag", "0", False),
        ("flag", True, True),
        ("count", "12", 12),
        ("ratio", "1e-3", 0.001),
        ("ratio", 2, 2.0),
        ("word", "12", "12"),
        ("bounds", "3250, 7200,18000", (3250.0, 7200.0, 18000.0)),
        ("bounds", "", ()),
        ("bounds", [1, 2], (1.0, 2.0)),
        ("pair", "2,b", (2, "b")),
        ("period_s", "none", None),
        ("period_s", "60", 60.0),
        ("mode", "exact", "exact"),
        ("colour", "red", Colour.RED),
        ("colour", Colour.RED, Colour.RED),
    ],
)
def test_a_setting_becomes_a_value_of_the_type_of_its_field(field: str, given: object, value: object) -> None:
    parsed = settings_of(Knobs, {field: given}, "knobs")[field]
    assert (parsed, type(parsed)) == (value, type(value))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"flg": "1"}, "unknown setting knobs.flg, did you mean 'flag'?"),
        ({"flag": "maybe"}, "knobs.flag must be true or false, got 'maybe'"),
        ({"count": "1.5"}, "knobs.count must be a whole number, got '1.5'"),
        ({"count": 1.5}, "knobs.count must be a whole number, got 1.5"),
        ({"count": True}, "knobs.count must be a whole number, got True"),
        ({"ratio": "much"}, "knobs.ratio must be a number, got 'much'"),
        ({"word": 3}, "knobs.word must be a text, got 3"),
        ({"bounds": "1,x"}, "knobs.bounds must be a number, got 'x'"),
        ({"pair": "1"}, "knobs.pair must have 2 values separated by commas, got '1'"),
        ({"period_s": "soon"}, "knobs.period_s must be a number, got 'soon'"),
        ({"mode": "fats"}, "knobs.mode must be one of fast, exact, got 'fats'"),
        ({"colour": "blue"}, "knobs.colour must be one of red, got 'blue'"),
    ],
)
def test_a_setting_that_does_not_fit_is_one_clear_line(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        settings_of(Knobs, given, "knobs")
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


OUT_OF_RANGE: list[tuple[dict[str, Any], str]] = [
    ({"above": 0.0}, "ranged.above must be > 0, got 0"),
    ({"above": -1.5}, "ranged.above must be > 0, got -1.5"),
    ({"above": nan}, "ranged.above must be finite, got nan"),
    ({"above": inf}, "ranged.above must be finite, got inf"),
    ({"share": 1.0}, "ranged.share must be >= 0 and < 1, got 1"),
    ({"count": 10}, "ranged.count must be >= 1 and <= 9, got 10"),
    ({"power": 0.0}, "ranged.power must be >= -16, <= 16 and not 0, got 0"),
    ({"power": 1e18}, "ranged.power must be >= -16, <= 16 and not 0, got 1e+18"),
    ({"bounds": (2.0, 2.0)}, "ranged.bounds must be increasing and > 0, got (2, 2)"),
    ({"bounds": (0.0, 2.0)}, "ranged.bounds must be increasing and > 0, got (0, 2)"),
    ({"period_s": 0.0}, "ranged.period_s must be > 0, got 0"),
]
NO_MULTIPLE: list[tuple[dict[str, Any], str]] = [
    ({"lease_s": 5.0}, "ranged.lease_s must be a multiple of unit_s=2, got 5"),
    ({"lease_s": 1.0, "unit_s": 2.0}, "ranged.lease_s must be a multiple of unit_s=2, got 1"),
]


@pytest.mark.parametrize(("given", "message"), OUT_OF_RANGE + NO_MULTIPLE)
def test_a_setting_out_of_range_is_refused_in_python(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        Ranged(**given)
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        replace(Ranged(), **given)


@pytest.mark.parametrize(("given", "message"), [row for row in OUT_OF_RANGE if inf not in row[0].values()])
def test_a_text_out_of_range_is_refused_in_the_same_words(given: dict[str, Any], message: str) -> None:
    texts = {name: str(value).strip("()") for name, value in given.items()}
    with pytest.raises(InputError, match=f"^{re.escape(message).replace('nan', '.*nan.*')}$"):
        settings_of(Ranged, texts, space="ranged")


@pytest.mark.parametrize(
    "given", [{}, {"bounds": ()}, {"period_s": None}, {"lease_s": 2.0}, {"share": 0.0, "free": -9}]
)
def test_a_setting_within_its_range_is_taken(given: dict[str, Any]) -> None:
    assert replace(Ranged(), **given) == Ranged(**given)


def test_settings_are_described_with_type_range_and_comment() -> None:
    rows = {row.name: row for row in describe_settings(Ranged)}
    assert rows["above"] == SettingDescription("above", "1", "a number > 0", "seconds")
    assert rows["count"].about == "how many, and a comment that takes two lines"
    assert rows["bounds"].expects == "a number > 0, or several, increasing, separated by commas"
    assert (rows["period_s"].default, rows["period_s"].expects) == ("none", "a number > 0 or none")
    assert rows["lease_s"].expects == "a number > 0 and a multiple of unit_s"
    assert (rows["free"].default, rows["free"].expects, rows["free"].about) == ("-1", "a whole number", "")
    assert {row.name: row.expects for row in describe_settings(Knobs)} == {
        "flag": "true or false",
        "count": "a whole number",
        "ratio": "a number",
        "word": "a text",
        "bounds": "a number, or several, separated by commas",
        "pair": "a whole number, a text, separated by commas",
        "period_s": "a number or none",
        "mode": "one of fast, exact",
        "colour": "one of red",
    }


def test_settings_come_back_from_their_texts_and_what_has_no_text_is_left_out() -> None:
    knobs = Knobs(flag=True, ratio=10.05, bounds=(1.0, 2.5), pair=(3, "b"), mode="exact")
    texts = texts_of(knobs)
    assert (texts["flag"], texts["ratio"], texts["bounds"], texts["period_s"]) == (
        "true",
        "10.05",
        "1, 2.5",
        "none",
    )
    assert Knobs(**settings_of(Knobs, texts, "knobs")) == knobs
    assert "ratio" not in texts_of(replace(knobs, ratio=inf))


@pytest.mark.parametrize("name", POLICIES)
def test_every_setting_of_a_policy_has_a_text(name: str) -> None:
    policy = load_policy(name)
    assert set(texts_of(policy)) == {entry.name for entry in setting_fields(type(policy))}
    assert load_policy(name, **texts_of(policy)) == policy


@pytest.mark.parametrize("name", POLICIES)
def test_every_number_among_the_settings_of_a_policy_has_a_range(name: str) -> None:
    component = policy_class(name)
    hints = get_type_hints(component)
    numbers = [entry for entry in setting_fields(component) if re.search("float|int", str(hints[entry.name]))]
    assert [entry.name for entry in numbers if RANGE not in entry.metadata] == []


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_is_held_to_its_ranges_when_it_is_built(name: str) -> None:
    """No policy replaces the check of its base by one of its own."""
    policy: Any = load_policy(name)
    bounded = [entry.name for entry in fields(policy) if RANGE in entry.metadata]
    for field in bounded:
        wrong = (nan,) if isinstance(getattr(policy, field), tuple) else nan
        with pytest.raises(InputError, match=rf"^policy\.{field} must be finite, got"):
            replace(policy, **{field: wrong})
