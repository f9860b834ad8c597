"""The summary of the demo, from what became of the jobs."""

from collections.abc import Sequence
from typing import Any

import pytest

from stretto.demo.display import findings, rows_of, timeline
from stretto.demo.outcome import Outcome, sizes_in


def outcome(name: str, came_s: float, jct_s: float, sizes: Sequence[tuple[float, int]]) -> Outcome:
    return Outcome("1", name, "batch", "COMPLETED", came_s, 0.5, jct_s, list(sizes))


def test_a_timeline_shows_who_waited_who_was_resized_and_who_was_not_there() -> None:
    jobs = [
        outcome("long", 0.0, 10.0, [(0.0, 0), (1.0, 1), (4.0, 3), (8.0, 2), (10.0, 0)]),
        outcome("late", 3.0, 5.0, [(3.0, 0), (4.0, 1), (6.0, 0), (7.0, 1), (8.0, 0)]),
    ]
    assert list(timeline(jobs, 17)) == [
        "workers over time, a character for each 1 s (. is waiting)",
        "long  .111333322",
        "late     .11.1",
    ]


@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_timeline_is_as_wide_as_it_may_be_and_no_wider(width: int) -> None:
    lines = list(timeline([outcome("job", 0.0, 100.0, [(0.0, 2), (100.0, 0)])], width))
    assert width / 3 < len(lines[1]) <= width


def test_an_instant_between_two_sizes_does_not_hide_the_longer_one() -> None:
    job = outcome("job", 0.0, 8.0, [(0.0, 1), (2.0, 0), (2.1, 2), (8.0, 0)])
    assert list(timeline([job], 14))[1] == "job  11222222"


def test_a_row_says_what_a_resize_cost_and_how_far_runs_that_nobody_disturbs_lie_apart() -> None:
    job = outcome("job", 0.0, 8.0, [])
    job.resizes, job.lost_s, job.reached, job.alone = 4, 0.5, 0.975, [0.975, 0.979]
    assert rows_of([job]) == [["job", "0.5", "8.0", "4", "0.12", "0.9750", "0.9750 ± 0.0028"]]
    assert "4 resizes in place; each cost 0.12 s of training on average" in findings([job])


def test_sizes_are_those_of_who_trains_together_not_of_who_only_imports() -> None:
    wanted = [{"id": name, "mask": mask} for name, mask in (("1.1.0", 1), ("1.1.1", 2))]
    events: list[tuple[float, str, dict[str, Any]]] = [
        (0.0, "Submitted", {}),
        (1.0, "WorkersWanted", {"workers": wanted[:1]}),
        (2.0, "WorkersRan", {"workers": ["1.1.0"]}),
        (3.0, "Generation", {"workers": ["1.1.0"]}),
        (4.0, "WorkersWanted", {"workers": wanted[1:]}),
        (5.0, "WorkersRan", {"workers": ["1.1.1"]}),
        (9.0, "Generation", {"workers": ["1.1.0", "1.1.1"]}),
        (11.0, "WorkersEnded", {"workers": [{"id": "1.1.0"}, {"id": "1.1.1"}]}),
    ]
    assert sizes_in(events) == [(0.0, 0), (2.0, 1), (9.0, 2), (11.0, 0)]


def test_who_has_joined_works_whether_or_not_a_look_at_its_process_came_in_time() -> None:
    wanted = [{"id": name, "mask": mask} for name, mask in (("1.1.0", 1), ("1.1.1", 2))]
    events: list[tuple[float, str, dict[str, Any]]] = [
        (1.0, "WorkersWanted", {"workers": wanted}),
        (2.0, "WorkersRan", {"workers": ["1.1.0"]}),
        (9.0, "Generation", {"workers": ["1.1.0", "1.1.1"]}),
        (9.5, "Joined", {"worker": "1.1.1"}),
        (10.0, "Generation", {"workers": ["1.1.0"]}),
    ]
    assert sizes_in(events) == [(1.0, 0), (2.0, 1), (9.5, 2), (10.0, 1)]


def test_a_job_that_did_not_complete_has_the_last_word() -> None:
    job = outcome("job", 0.0, 8.0, [])
    job.state, job.last_words = "FAILED", ["Traceback", "ValueError"]
    assert list(findings([job]))[:3] == ["job: FAILED; it said last:", "    Traceback", "    ValueError"]
