"""What policies are shown where a simulation knows no more than a live service."""

from dataclasses import replace
from math import nan

import numpy as np
import pytest

from stretto.model import NotDeclared, Requests, View
from stretto.sim.accounting import Accounting
from stretto.sim.history import History
from stretto.sim.live_knowledge import LiveKnowledge
from stretto.sim.settings import Knowledge, SimSettings
from stretto.testing.builders import a_cluster, a_job
from stretto.traces.workload import Truth, Workload

from .made_worlds import Seen, Told, a_truth, a_workload, seen, seen_training

VIEWS = frozenset({View.PROGRESS, View.REMAINING_WORK, View.ESTIMATED_DURATION, View.ORACLE_DURATION})
TRUE, LIVE = SimSettings(restart_s=10.0), SimSettings(restart_s=10.0, knowledge=Knowledge.LIVE)
TRAINS = {0.0: {"a": {0: 1}}, 60.0: {"a": {0: 1}}, 70.0: {}, 80.0: {"a": {0: 1}}, 100.0: {"a": {0: 1}}}


def two_trainings(sim: SimSettings) -> Seen:
    """Both take 300 s and 10 s to start; a stops at 70 s and goes on at 80 s, and b waits for its end."""
    policy = Told({**TRAINS, 400.0: {"b": {0: 1}}}, views=VIEWS)
    jobs = [a_job("a", batch_size=10), a_job("b", batch_size=10)]
    return seen_training(policy, jobs, a_cluster(1), a_truth(epoch_s=100.0, epochs=3), sim)


def test_the_truth_is_shown_from_the_submission_on_unless_the_settings_say_otherwise() -> None:
    shown = two_trainings(TRUE).at(0.0).jobs
    assert shown.remaining_work == pytest.approx([300.0, 300.0])
    assert shown.estimates.remaining_s == pytest.approx([300.0, 300.0])
    assert shown.progress.suspension_s == pytest.approx([10.0, 10.0])


def test_of_a_training_that_has_not_begun_a_service_knows_nothing() -> None:
    shown = two_trainings(LIVE).at(0.0).jobs
    assert shown.remaining_work == pytest.approx([nan, nan], nan_ok=True)
    assert shown.estimates.remaining_s.tolist() == shown.durations.remaining_s.tolist() == [3600.0, 3600.0]
    assert shown.progress.suspension_s == pytest.approx([nan, nan], nan_ok=True)


def test_one_that_trains_tells_how_much_is_left() -> None:
    shown = two_trainings(LIVE).at(60.0).jobs
    assert shown.remaining_work == pytest.approx([250.0, nan], nan_ok=True)  # it trains since 10 s
    assert shown.estimates.remaining_s == pytest.approx([250.0, 3600.0])
    assert shown.estimates.duration_s == pytest.approx([310.0, 3600.0])


def test_one_that_was_stopped_counts_its_steps_but_no_time() -> None:
    shown = two_trainings(LIVE).at(80.0).jobs
    assert shown.remaining_work == pytest.approx([240.0, nan], nan_ok=True)
    assert shown.estimates.remaining_s == pytest.approx([3530.0, 3600.0])


def test_a_stop_and_a_start_are_known_of_all_jobs_once_one_was_stopped_and_went_on() -> None:
    run = two_trainings(LIVE)
    assert run.at(60.0).jobs.progress.suspension_s == pytest.approx([nan, nan], nan_ok=True)
    assert run.at(100.0).jobs.progress.suspension_s == pytest.approx([10.0, 10.0])


@pytest.mark.parametrize(
    ("starts", "expected"),
    [
        pytest.param([2, 1, 1, 0], [1.0, 1.0, 1.0, 1.0], id="one that was stopped stands for all"),
        pytest.param([2, 1, 4, 0], [1.0, 1.0, 3.0, 3.0], id="each model has that of its own jobs"),
        pytest.param([2, 3, 1, 0], [1.0, 2.0, 5 / 3, 5 / 3], id="others the mean of all that happened"),
    ],
)
def test_what_stops_and_starts_take_is_that_of_the_job_else_of_its_model_else_of_all(
    starts: list[int], expected: list[float]
) -> None:
    jobs = [a_job(name, model=model) for name, model in zip("abcd", "mmnn", strict=True)]
    nothing, charged_s = np.full(4, nan), np.array([1.0, 2.0, 3.0, 4.0])
    told = LiveKnowledge(Requests(jobs, a_cluster(1)), {}, nothing, charged_s)
    accounting = Accounting(History(4))
    accounting.starts[:] = starts
    assert told.suspensions_s(np.arange(4), accounting) == pytest.approx(expected)


def test_owners_state_how_long_recorded_jobs_take_and_what_these_had_is_not_left() -> None:
    line = {"a": {0: 2}}
    policy = Told({0.0: line, 60.0: line}, views=VIEWS)
    job = replace(a_job("a", gpus=1), max_gpus=2)
    shown = seen(policy, a_workload((job, 300.0)), a_cluster(2), LIVE).at(60.0).jobs
    assert shown.estimates.duration_s == pytest.approx([300.0])
    assert shown.estimates.remaining_s == pytest.approx([180.0])  # two GPUs for a minute
    assert shown.remaining_work == pytest.approx([nan], nan_ok=True)


def test_errors_of_what_is_stated_count_and_those_of_what_is_measured_do_not() -> None:
    policy = Told({0.0: {"a": {0: 1}}}, views=VIEWS)
    wrong = replace(LIVE, liars=1.0)
    stated = seen(policy, a_workload((a_job("a"), 300.0)), a_cluster(1), wrong).at(0.0).jobs
    assert stated.estimates.duration_s == pytest.approx([30.0])
    assert two_trainings(wrong).at(60.0).jobs.estimates.remaining_s == pytest.approx([250.0, 3600.0])


def test_nothing_more_is_shown_than_was_declared() -> None:
    policy = Told({0.0: {"a": {0: 1}}}, views=frozenset({View.PROGRESS}))
    shown = seen(policy, Workload("one", [a_job("a")], [Truth(10.0)]), a_cluster(1), LIVE).at(0.0).jobs
    with pytest.raises(NotDeclared):
        shown.remaining_work  # noqa: B018  (looking is what raises)
