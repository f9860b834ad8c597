"""Many runs at once: in order, told about, and ended together."""

import multiprocessing
import os

import pytest

from stretto.experiments import sweep
from stretto.experiments.spec import RunSpec
from stretto.experiments.sweep import cores, run_all
from stretto.model import InputError

SPECS = [RunSpec("sia-homo-64", f"demo:jobs={jobs}", "fifo", seed=seed) for jobs in (6, 3) for seed in (0, 1)]


@pytest.mark.parametrize("workers", [1, 3])
def test_results_come_in_the_order_of_the_runs(workers: int) -> None:
    results = run_all(SPECS, workers)
    assert [(len(result.requests.jobs), result.seed) for result in results] == [
        (6, 0),
        (6, 1),
        (3, 0),
        (3, 1),
    ]


def test_nothing_to_run_gives_nothing() -> None:
    assert run_all([]) == []


def test_no_process_is_left_behind_after_an_error() -> None:
    with pytest.raises(InputError, match="no trace file"):
        run_all([*SPECS, RunSpec("sia-homo-64", "nowhere", "fifo")], 2)
    assert [child for child in multiprocessing.active_children() if child.is_alive()] == []


def test_one_simulation_a_core_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def beside(specs: object, workers: int, tell: object) -> list[object]:
        asked.append(workers)
        return []

    monkeypatch.setattr(sweep, "_run_beside", beside)
    monkeypatch.setattr(sweep, "cores", lambda: 3)
    run_all(SPECS)
    run_all(SPECS, 2)
    run_all(SPECS, 64)
    assert asked == [3, 2, 4]  # never more than there are runs


def test_cores_are_those_that_this_process_may_use() -> None:
    assert 1 <= cores() <= (os.cpu_count() or 1)
