"""Numbers as people read them."""

import pytest

from stretto.report.wording import column_unit, digits, duration, listed, plain, plural, share, times


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (0.0123, "12.3 ms"),
        (0.35, "350 ms"),
        (42, "42.0 s"),
        (720, "12 min"),
        (1_944, "0.54 h"),
        (39_600, "11.0 h"),
        (450_000, "5.21 d"),
        (float("nan"), "–"),
        (float("inf"), "∞"),
    ],
)
def test_a_time_is_in_the_unit_that_people_would_choose(seconds: float, words: str) -> None:
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("fraction", "words"),
    [(0, "0 %"), (1, "100 %"), (0.034, "3.4 %"), (0.5, "50 %"), (0.996, "99.6 %"), (float("nan"), "–")],
)
def test_shares_have_a_decimal_only_near_the_ends(fraction: float, words: str) -> None:
    assert share(fraction) == words


def test_counts_have_no_decimals_and_thousands_are_set_apart() -> None:
    assert plural(1, "job") == "1 job"
    assert plural(82_000, "job") == "82\u2009000 jobs"
    assert (plain(64.0), plain(0.5)) == ("64", "0.5")


def test_small_and_large_numbers_have_no_exponent() -> None:
    assert digits(0.00012) == "0.00012"
    assert digits(1.5e9) == "1\u2009500\u2009000\u2009000"
    assert times(1.5678) == "1.57×"


def test_names_are_listed_as_in_a_sentence() -> None:
    assert (listed([]), listed(["a"]), listed(["a", "b", "c"])) == ("", "a", "a, b and c")


@pytest.mark.parametrize(
    ("kind", "values", "name", "first"),
    [
        pytest.param("time", [1_944, 7_200], "h", "0.54", id="hours from about 12 minutes on"),
        pytest.param("time", [40, 65], "min", "0.67", id="minutes from 12 seconds on"),
        pytest.param("time", [400_000, 500_000], "d", "4.63", id="days where there are several"),
        pytest.param("share", [0.125, float("nan")], "%", "12.5", id="shares in per cent"),
        pytest.param("ms", [12.345], "ms", "12.3", id="three digits"),
        pytest.param("number", [2.0, 3.0], "", "2", id="whole numbers have no decimals"),
        pytest.param("number", [float("nan")], "", "–", id="nothing known"),
    ],
)
def test_a_column_has_one_unit(kind: str, values: list[float], name: str, first: str) -> None:
    unit = column_unit(kind, values)
    assert (unit.name, unit.text(values[0])) == (name, first)
