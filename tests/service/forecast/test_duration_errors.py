"""What forecasts make of how wrong earlier beliefs were, and whether their intervals hold."""

from math import inf

import numpy as np
import pytest
from tests.service.scene import Scene

from stretto.model import FloatArray
from stretto.service.forecast.fork import factors, first_in_line, fork_of
from stretto.service.forecast.simulate import DRAWS, outlook_of, span_of
from stretto.service.state import events as happened
from stretto.service.state.duration_errors import LEAST_KNOWN, USUAL_TAIL, ErrorDistribution, left_after
from stretto.service.state.remaining import Basis


def test_nine_draws_reach_from_the_first_to_the_last_and_more_leave_some_out() -> None:
    assert (span_of([float(number) for number in range(9)]).low_s, DRAWS) == (0.0, 9)
    assert span_of([float(number) for number in range(9)]).high_s == 8.0
    nineteen = span_of([float(number) for number in range(19)])
    assert (nineteen.low_s, nineteen.middle_s, nineteen.high_s) == (1.0, 9.0, 17.0)
    assert span_of([1.0, inf, inf]).high_s == inf


def test_jobs_that_go_on_count_as_kaplan_and_meier_have_it() -> None:
    # By hand: at 1 all 12 are at risk, one of which ends; at 2 ten are, since one has gone on beyond 1 only.
    ended, lasted = [1.0, 2.0, *([5.0] * 8)], [1.5, 9.0]
    found = ErrorDistribution.of(ended, lasted)
    assert found.values.tolist() == [1.0, 2.0]  # fewer than ten lasted until 5
    assert found.beyond == pytest.approx([11 / 12, 11 / 12 * 9 / 10])


def test_a_draw_is_one_of_those_above_the_least_each_as_likely_as_it_was() -> None:
    values = np.arange(1.0, 101.0)
    found = ErrorDistribution(values, 1.0 - np.arange(1, 101) / 100)
    chances = (np.arange(50) + 0.5) / 50
    assert found.draw(np.full(50, 50.0), chances)[0].tolist() == list(range(51, 101))
    assert found.draw(np.array([-inf]), np.array([0.005]))[0].tolist() == [1.0]
    drawn, beyond = found.draw(np.array([100.0]), np.array([0.25]))
    assert np.isnan(drawn).all()
    assert beyond.tolist() == [0.25]


def test_what_is_drawn_beyond_all_that_is_known_is_as_likely_as_that_is() -> None:
    found = ErrorDistribution(np.array([1.0, 2.0]), np.array([0.6, 0.2]))  # a fifth lasts for longer
    drawn, beyond = found.draw(np.full(3, -inf), np.array([0.5, 0.8, 0.9]))
    assert drawn[:2].tolist() == [2.0, 2.0]
    assert (np.isnan(drawn[2]), beyond[2]) == (True, pytest.approx(0.5))
    assert np.isnan(found.draw(np.array([1.5]), np.array([0.7]))[0]).all()  # a third of those above 1.5


@pytest.mark.parametrize("mean", [0.2, 1.5])
def test_the_largest_that_are_known_say_how_large_others_are(mean: float) -> None:
    random = np.random.default_rng(0)
    takes, seen_for = random.exponential(mean, 4000), random.exponential(3 * mean, 4000)
    ended, lasted = takes[takes < seen_for], seen_for[seen_for <= takes]
    errors = ErrorDistribution.of(list(ended), list(lasted))
    assert errors.tail == pytest.approx(mean, rel=0.1)
    # Of jobs that have lasted longer than any other, half take by so much longer as half of all take at all.
    had_s = np.full(1, 1e3 * np.exp(errors.values[-1]))
    left_s = left_after(np.ones(1), had_s, errors, np.full(1, 0.5))
    assert (had_s + left_s) / had_s == pytest.approx(2.0**errors.tail)


def test_few_ends_say_nothing_of_larger_ones() -> None:
    assert ErrorDistribution.of([0.1, 0.2, 0.3, 0.4], [0.5, 0.6]).tail == USUAL_TAIL


def test_a_job_that_has_lasted_longer_than_any_may_need_as_long_again() -> None:
    errors = ErrorDistribution(np.array([0.0]), np.array([0.0]))
    left_s = left_after(np.full(3, 100.0), np.full(3, 400.0), errors, np.array([0.25, 0.5, 0.75]))
    assert left_s == pytest.approx([400 / 3, 400.0, 1200.0])


@pytest.mark.parametrize("spread", [0.3, 2.0])
@pytest.mark.parametrize("too_much", [1.0, 4.0])
def test_intervals_hold_80_percent_whatever_owners_say(spread: float, too_much: float) -> None:
    # Made: jobs take their owners' word, divided by what these exaggerate, times a lognormal number.
    draw = np.random.default_rng(1)

    def jobs(count: int) -> FloatArray:
        found: FloatArray = np.exp(spread * draw.normal(size=count)) / too_much
        return found

    errors = ErrorDistribution.of(np.log(jobs(400)).tolist(), [])
    said_s, had_s = 10_000.0, 5_000.0 / too_much
    took_s = said_s * jobs(4000)
    took_s = took_s[took_s > had_s]  # jobs are looked at while they run
    said, had = np.full(len(took_s), said_s), np.full(len(took_s), had_s)
    draws = [left_after(said, had, errors, draw.uniform(size=len(said))) for _ in range(DRAWS)]
    left_s = took_s - had_s
    held = float(((left_s >= np.min(draws, axis=0)) & (left_s <= np.max(draws, axis=0))).mean())
    assert 0.72 <= held <= 0.88


def test_what_became_of_earlier_jobs_is_believed_rather_than_owners() -> None:
    scene = Scene(nodes=1, gpus=4)
    for number in range(LEAST_KNOWN):  # each takes three times as long as its owner says
        scene.submit(f"e{number}", 4, expected_time_s=100.0)
        scene.give(**{f"_e{number}": {"n0": 15}})
        scene.now_s += 300.0
        before = fork_of(scene.state, scene.now_s)
        scene.tell(happened.Ended(f"e{number}", "COMPLETED", 0))
    assert before.errors == {}  # too few have ended
    scene.submit("never-ran", 4, expected_time_s=100.0)
    scene.tell(happened.Ended("never-ran", "CANCELLED"))  # tells nothing
    scene.submit("now", 4, expected_time_s=100.0)
    scene.give(_now={"n0": 15})
    fork = fork_of(scene.state, scene.now_s)
    assert set(fork.errors) == {Basis.EXPECTED}
    outlook = outlook_of(fork)
    assert outlook.end("now").middle_s - scene.now_s == pytest.approx(300.0)
    scene.submit("assumed", 4)  # of beliefs of this kind nothing is known
    fork = fork_of(scene.state, scene.now_s)
    assert [round(each, 6) for each in factors(fork, 0).tolist()] == [3.0, 1.0]


def test_who_is_first_in_line_is_looked_at_and_the_rest_is_named() -> None:
    scene = Scene(nodes=1, gpus=4)
    for number, priority in enumerate((0, 0, 0, 5)):
        scene.submit(f"j{number}", 1, priority=priority)
    scene.give(_j0={"n0": 1})
    records, behind = first_in_line(scene.state, 2)
    assert ([record.id for record in records], behind) == (["j0", "j1", "j3"], 1)
    assert first_in_line(scene.state, None)[1] == 0
    fork = fork_of(scene.state, 1.0, most_waiting=2)
    assert [member.job.id for member in fork.members] == ["j0", "j1", "j3"]
    assert fork.assumed[0] == "1 more jobs, which wait behind these, are not there"
