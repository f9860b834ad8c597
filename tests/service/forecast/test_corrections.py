"""Intervals are corrected by what became of earlier ones, so that as many hold as are to hold."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.service.scene import Scene

from stretto.service.forecast.corrections import (
    LEAST_KNOWN,
    MISSED,
    MOST_KEPT,
    MOST_MISSED,
    STEP,
    Correction,
    DrawnInterval,
    ForecastRecord,
    Interval,
    corrected,
    followed,
    quantile,
)
from stretto.service.forecast.fork import fork_of
from stretto.service.forecast.simulate import outlook_of

HOUR = 3600.0


def lived(factor: float, spread: float, count: int, record: ForecastRecord) -> list[bool]:
    """Forecasts of an hour ± 20 % one after the other, and whether each held once it was corrected."""
    draw, held = np.random.default_rng(3), []
    for number in range(count):
        made_s = 10.0 * HOUR * number
        drawn = Interval(made_s + HOUR, made_s + 0.8 * HOUR, made_s + 1.2 * HOUR)
        told = corrected(record.corrections((), made_s), "end", drawn, made_s)
        at_s = made_s + HOUR * factor * float(np.exp(spread * draw.normal()))
        held.append(told.low_s <= at_s <= told.high_s)
        record.note("end", DrawnInterval(made_s, drawn), told, at_s)
    return held


@pytest.mark.parametrize(
    ("factor", "spread"),
    [
        pytest.param(1.0, 0.7, id="what happens spreads more than was drawn"),
        pytest.param(3.0, 0.2, id="everything is late"),
        pytest.param(0.3, 0.2, id="everything is early"),
        pytest.param(1.0, 0.02, id="intervals were far too wide"),
    ],
)
def test_as_many_hold_as_are_to_hold_however_wrong_the_draws_are(factor: float, spread: float) -> None:
    held = lived(factor, spread, 400, ForecastRecord())
    aim = 1.0 - 2.0 * MISSED
    # The middle stays inside, so that of what is always late or early more hold.
    assert aim - 0.06 <= np.mean(held[100:])
    if factor == 1.0:
        assert np.mean(held[100:]) <= aim + 0.06


def queues(sizes: list[int], spread: float, growth: float) -> list[bool]:
    """Whether forecasts of jobs that wait together hold: what is wrong with one is wrong with its queue.

    growth: by how much more the next queue is off.
    """
    draw, held, record = np.random.default_rng(5), [], ForecastRecord()
    for number, size in enumerate(sizes):
        made_s, off = 100.0 * HOUR * number, spread * float(np.exp(growth * number)) * draw.normal()
        drawn = Interval(made_s + 5 * HOUR, made_s + 4 * HOUR, made_s + 6 * HOUR)
        told = corrected(record.corrections((), made_s), "start", drawn, made_s)
        at_s = made_s + 5 * HOUR * float(np.exp(off))
        held += [told.side_of(at_s) == "inside"] * size
        for _ in range(size):
            record.note("start", DrawnInterval(made_s, drawn), told, at_s)
    return held


def test_as_many_hold_as_are_to_hold_where_queues_are_ever_further_off() -> None:
    held = queues([20] * 250, spread=0.1, growth=0.008)
    assert 0.77 <= np.mean(held[1_000:]) <= 0.86


def test_a_level_follows_what_is_missed_and_stays_between_none_and_half() -> None:
    assert followed(0.1, True) == pytest.approx(0.1 - 0.9 * STEP)
    assert followed(0.1, False) == pytest.approx(0.1 + 0.1 * STEP)
    assert followed(0.0, True) == 0.0
    assert followed(MOST_MISSED, False) == MOST_MISSED


@pytest.mark.parametrize(
    ("after_s", "side"),
    [(-2.0, "early"), (-0.5, "inside"), (HOUR, "inside"), (2 * HOUR + 0.5, "inside"), (3 * HOUR, "late")],
)
def test_what_happens_a_second_beside_an_interval_is_inside(after_s: float, side: str) -> None:
    assert Interval(2 * HOUR, HOUR, 3 * HOUR).side_of(HOUR + after_s) == side


def test_an_interval_that_was_missed_makes_the_next_ones_wider_on_that_side_alone() -> None:
    def one_more(at_s: float) -> Correction:
        record = ForecastRecord()
        lived(1.0, 0.7, 400, record)
        span = Interval(HOUR, 0.8 * HOUR, 1.2 * HOUR)
        for _ in range(40):
            record.note("end", DrawnInterval(0.0, span), span, at_s)
        del record.rows["end"][400:]  # only the level is looked at
        return record.corrections((), 0.0)["end"]

    held, late = one_more(HOUR), one_more(2 * HOUR)
    assert late.high > held.high
    assert late.low == held.low


def test_intervals_are_narrowed_where_they_are_too_wide() -> None:
    record = ForecastRecord()
    lived(1.0, 0.02, 100, record)
    told = corrected(record.corrections((), 0.0), "end", Interval(HOUR, 0.8 * HOUR, 1.2 * HOUR), 0.0)
    assert 0.9 * HOUR < told.low_s < HOUR < told.high_s < 1.1 * HOUR


def test_nothing_is_corrected_until_enough_is_known() -> None:
    record, span = ForecastRecord(), Interval(HOUR, 0.8 * HOUR, 1.2 * HOUR)
    lived(3.0, 0.0, LEAST_KNOWN - 1, record)
    assert corrected(record.corrections((), 0.0), "end", span, 0.0) == span
    lived(3.0, 0.0, 1, record)
    corrections = record.corrections((), 0.0)
    assert corrected(corrections, "end", span, 0.0).high_s == pytest.approx(3.0 * HOUR)
    assert corrected(corrections, "start", span, 0.0) == span  # of these nothing is known


def test_what_has_not_happened_yet_is_known_to_be_late() -> None:
    record, span = ForecastRecord(), Interval(HOUR, 0.8 * HOUR, 1.2 * HOUR)
    lived(1.0, 0.0, 60, record)
    late = [("end", DrawnInterval(0.0, span))] * 20
    closed, open_ = record.corrections((), 30 * HOUR)["end"], record.corrections(late, 30 * HOUR)["end"]
    assert closed.high < 0.0 < open_.high
    assert corrected({"end": open_}, "end", span, 0.0).high_s == pytest.approx(30 * HOUR)


def test_no_bound_is_moved_beyond_what_the_record_has_seen() -> None:
    correction = Correction(low=0.0, high=3.0, longest=float(np.log(10 * HOUR + 60.0)))
    assert correction.of(Interval(5 * HOUR, HOUR, 6 * HOUR), 0.0).high_s == pytest.approx(10 * HOUR)
    drawn = Interval(5 * HOUR, HOUR, 60 * HOUR)  # was drawn so: it stays
    assert correction.of(drawn, 0.0).high_s == pytest.approx(60 * HOUR)


def test_what_is_never_reached_stays_so() -> None:
    correction = Correction(low=0.5, high=0.5, longest=20.0)
    never = Interval(inf, inf, inf)
    assert corrected({"end": correction}, "end", never, 0.0) == never
    assert correction.of(Interval(HOUR, HOUR, inf), 0.0).high_s == inf
    record = ForecastRecord()
    for _ in range(LEAST_KNOWN):
        span = Interval(HOUR, HOUR, inf)
        record.note("end", DrawnInterval(0.0, span), span, HOUR)
    assert record.corrections((), HOUR)["end"].high == 0.0


@given(
    low=st.floats(-5.0, 5.0),
    high=st.floats(-5.0, 5.0),
    ahead_s=st.lists(st.floats(0.0, 1e6), min_size=3, max_size=3).map(sorted),
)
def test_a_corrected_interval_lies_ahead_and_holds_its_middle(
    low: float, high: float, ahead_s: list[float]
) -> None:
    now_s = 5_000.0
    span = Interval(now_s + ahead_s[1], now_s + ahead_s[0], now_s + ahead_s[2])
    told = Correction(low, high, longest=30.0).of(span, now_s)
    assert now_s - 1e-6 <= told.low_s <= told.middle_s <= told.high_s
    assert told.middle_s == span.middle_s


def test_only_the_newest_forecasts_count() -> None:
    record = ForecastRecord()
    lived(3.0, 0.0, 50, record)
    lived(1.0, 0.0, MOST_KEPT, record)
    assert record.corrections((), 0.0)["end"].high < 0.0


@pytest.mark.parametrize(
    ("seen", "at_least", "share", "value"),
    [
        pytest.param([1, 2, 3, 4, 5], [], 0.8, 4, id="as of a sorted list"),
        pytest.param([1, 2, 3, 4, 5], [], 1.0, 5, id="the largest"),
        pytest.param([1, 2, 3, 4, 5], [0, 0, 0], 0.8, 4, id="what says nothing changes nothing"),
        pytest.param([1, 2], [9, 9, 9], 0.8, 9, id="most are larger than what is known"),
        pytest.param([1, 4], [2, 3], 0.5, 4, id="one of two that are left at four"),
    ],
)
def test_quantiles_of_what_is_partly_unknown(
    seen: list[float], at_least: list[float], share: float, value: float
) -> None:
    assert quantile(np.array(seen, float), np.array(at_least, float), share) == value


def test_a_forecast_is_told_with_corrections_but_for_starts_that_were() -> None:
    scene = Scene(nodes=1, gpus=4)
    scene.submit("holds", 4, expected_time_s=HOUR)
    scene.give(_holds={"n0": 15})
    scene.reconcile()
    scene.submit("waits", 4, expected_time_s=HOUR)
    fork = fork_of(scene.state, 60.0)
    corrections = dict.fromkeys(("start", "end"), Correction(low=0.7, high=0.7, longest=30.0))
    plain, wide = outlook_of(fork), outlook_of(replace(fork, corrections=corrections))
    assert plain.start("holds") == wide.start("holds")
    for before, after in (
        (plain.end("holds"), wide.end("holds")),
        (plain.start("waits"), wide.start("waits")),
        (plain.end("waits"), wide.end("waits")),
    ):
        assert after.low_s < before.low_s <= before.middle_s == after.middle_s <= before.high_s < after.high_s
