"""What the log says of how a training went: curves, measured speed, and what changes of size cost."""

from typing import Any

import pytest

from stretto.service.state.size_changes import Size
from stretto.service.state.training_history import (
    Happened,
    Pace,
    Point,
    paces_of,
    points_of,
    resizes_of,
    thinned,
)


def reported(at_s: float, **report: Any) -> Happened:
    return Happened(at_s, "Reported", {"report": report})


def size(at_s: float, gpus: int, gpu_type: str = "a100") -> Size:
    return Size(at_s, gpus, gpu_type if gpus else "", "because")


def test_a_curve_has_what_was_reported_and_goes_on_where_a_report_leaves_its_step_out() -> None:
    told = [
        reported(1.0, step=10, epoch=1, loss=2.5, batch=64),
        Happened(2.0, "Checkpointed", {"step": 10, "path": "x"}),
        reported(3.0, loss=2.0),
        reported(4.0, step=30),  # says nothing that is drawn
        reported(5.0, loss=float("nan"), metric=0.5),
    ]
    assert points_of(told) == [
        Point(1.0, 10, 1, 2.5, None, 64),
        Point(3.0, 10, 1, 2.0, None, None),
        Point(5.0, 30, 1, None, 0.5, None),
    ]


def test_a_long_curve_is_thinned_between_its_ends() -> None:
    points = [Point(float(number), number, 0, 1.0, None, None) for number in range(1001)]
    few = thinned(points, 11)
    assert [point.step for point in few] == list(range(0, 1001, 100))
    assert thinned(points[:5], 11) == points[:5]


def test_speed_is_measured_between_reports_of_one_size_and_not_across_a_change() -> None:
    events = [
        reported(0.0, progress_steps=0.0),
        reported(10.0, progress_steps=20.0),
        reported(20.0, progress_steps=40.0),
        Happened(30.0, "Generation", {"number": 2, "workers": ["a", "b"]}),
        reported(31.0, progress_steps=45.0),  # of neither size
        Happened(32.0, "WorkersJoined", {"number": 2, "workers": ["a", "b"]}),
        reported(40.0, progress_steps=60.0),
        reported(50.0, progress_steps=100.0),
    ]
    sizes = [size(0.0, 1), size(29.0, 2)]
    assert paces_of(events, sizes) == [Pace("a100", 1, 2.0, 20.0), Pace("a100", 2, 4.0, 10.0)]


def test_a_training_that_went_back_to_a_checkpoint_measures_nothing_in_between() -> None:
    events = [reported(0.0, step=100), reported(10.0, step=50), reported(20.0, step=80)]
    assert paces_of(events, [size(0.0, 1)]) == [Pace("a100", 1, 3.0, 10.0)]


def test_a_resize_in_place_costs_what_its_workers_say_and_a_restart_all_the_time_until_they_train() -> None:
    events = [
        Happened(0.5, "WorkersWanted", {"workers": [{"id": "a"}]}),
        Happened(4.0, "Generation", {"number": 1, "workers": ["a"]}),
        Happened(5.0, "Joined", {"number": 1, "worker": "a", "lost_s": 0.0}),
        Happened(103.0, "Generation", {"number": 2, "workers": ["a", "b"]}),
        Happened(104.0, "Joined", {"number": 2, "worker": "a", "lost_s": 0.25}),
        Happened(106.0, "Joined", {"number": 2, "worker": "b", "lost_s": 0.0}),
        Happened(202.0, "AttemptClosed", {"attempt": 1, "outcome": "left"}),
        Happened(210.0, "Generation", {"number": 1, "workers": ["c"]}),
        Happened(212.0, "WorkersJoined", {"number": 1, "workers": ["c"]}),
        Happened(305.0, "AttemptClosed", {"attempt": 2, "outcome": "left"}),
        Happened(410.0, "Generation", {"number": 1, "workers": ["d"]}),
    ]
    sizes = [size(0.0, 1), size(100.0, 2), size(200.0, 1, "t4"), size(300.0, 0), size(400.0, 1)]
    told = list(resizes_of(sizes, events))
    assert [(one.how, one.gpus_before, one.gpus, one.trains_after_s, one.lost_s) for one in told] == [
        ("start", 0, 1, 5.0, 5.0),
        ("in place", 1, 2, 6.0, 0.25),
        ("restart", 2, 1, 12.0, 12.0),
        ("stop", 1, 0, None, None),
        ("restart", 0, 1, None, None),  # it does not train yet
    ]


@pytest.mark.parametrize("ran", [["a", "b"], ["a"]])
def test_a_script_without_the_sdk_trains_once_all_its_processes_are_there(ran: list[str]) -> None:
    events = [
        Happened(1.0, "WorkersWanted", {"workers": [{"id": "a"}, {"id": "b"}]}),
        Happened(3.0, "WorkersRan", {"workers": ran}),
    ]
    (start,) = resizes_of([size(0.0, 2)], events)
    assert start.trains_after_s == (3.0 if len(ran) == 2 else None)
