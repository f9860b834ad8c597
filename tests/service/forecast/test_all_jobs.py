"""Forecasts of very many jobs: a policy that takes too long is not asked, and the answer says so."""

from math import isfinite

import pytest
from tests.service.scene import Scene

from stretto.service.forecast import all_jobs as subject
from stretto.service.forecast.all_jobs import all_jobs
from stretto.service.forecast.fork import ExtraNodes, Fork, fork_of
from stretto.service.forecast.line import line_ahead
from stretto.service.state import events as happened

MANY = 6


@pytest.fixture
def fork(monkeypatch: pytest.MonkeyPatch) -> Fork:
    """Four GPUs under `srtf`: "wide" holds all of them, and shorter jobs wait that it would serve first."""
    monkeypatch.setattr(subject, "MOST_ASKED", MANY - 1)
    scene = Scene(nodes=1, gpus=4)
    scene.tell(happened.Configured("srtf"))
    scene.submit("wide", 4, expected_time_s=3600.0)
    scene.give(_wide={"n0": 15})
    scene.reconcile()
    for number in range(MANY - 1):
        scene.submit(f"j{number}", 4, expected_time_s=600.0 * (1 + number))
    return fork_of(scene.state, 60.0)


def test_gpus_of_a_type_that_nothing_is_known_of_are_said_to_be_assumed() -> None:
    scene = Scene(nodes=1, gpus=4)
    known = scene.state.cluster.type_names[0] if scene.state.cluster else ""
    extra = [ExtraNodes(known, 4, 1), ExtraNodes("h2oo", 8, 2), ExtraNodes("h2oo", 4, 1)]
    (new, *_), known_only = fork_of(scene.state, 1.0, extra).assumed, fork_of(scene.state, 1.0, extra[:1])
    assert new == "no node has had GPUs of type h2oo: their speed is 1"
    assert not any("speed" in words for words in known_only.assumed)


def test_where_the_policy_takes_too_long_jobs_start_in_line(
    fork: Fork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "ASKING_S", 0.0)
    seen = all_jobs(fork)
    assert [words.split(":")[0] for words in seen.assumed] == [
        "policy srtf would take too long to foresee so many jobs"
    ]
    wide_end = seen.spans["wide"][1].middle_s
    assert wide_end >= 3600.0 * 0.8  # it keeps its GPUs, which srtf would take
    assert all(seen.spans[f"j{number}"][0].low_s > 1800.0 for number in range(MANY - 1))
    assert all(isfinite(end.middle_s) for _, end in seen.spans.values())
    assert line_ahead(fork).line[:3] == ("j0", "j1", "j2")


def test_a_policy_that_is_quick_decides_itself(fork: Fork, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "ASKING_S", 1e6)
    seen = all_jobs(fork)
    assert seen.assumed == ()
    assert seen.spans["j0"][0].middle_s < 600.0  # srtf takes the GPUs from the longer one


def test_a_policy_that_is_slow_decides_about_few_jobs_itself(
    fork: Fork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "ASKING_S", 0.0)
    monkeypatch.setattr(subject, "MOST_ASKED", MANY)
    seen = all_jobs(fork)
    assert (seen.assumed, seen.draws) == ((), 9)
    assert seen.spans["j0"][0].middle_s < 600.0


def test_of_very_many_jobs_no_more_than_a_day_is_foreseen(
    fork: Fork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "ASKING_S", 0.0)
    monkeypatch.setattr(subject, "AHEAD_S", 5000.0)
    seen = all_jobs(fork)
    assert isfinite(seen.spans["j0"][0].middle_s)
    assert not isfinite(seen.spans["j4"][1].middle_s)
    assert 60.0 + 5000.0 <= seen.reached_s < 60.0 + 20_000.0


def test_no_draw_begins_once_the_time_for_all_is_over(fork: Fork, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "ASKING_S", 0.0)
    monkeypatch.setattr(subject, "ALL_S", 0.0)
    seen = all_jobs(fork)
    assert seen.draws == 1
    assert seen.took_s > 0.0
