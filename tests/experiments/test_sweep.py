"""Many runs at once: in order, told about, and ended together."""

import multiprocessing
import os
import re
import threading
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from stretto.experiments import sweep
from stretto.experiments.finished import Finished
from stretto.experiments.progress import Bars, Lines, time_left_s
from stretto.experiments.spec import RunSpec, run_spec
from stretto.experiments.sweep import Done, RunFailed, cores, run_all, run_each
from stretto.model import InputError

DUMMY: Any = None  # a result that nobody looks at
SPECS = [RunSpec("sia-homo-64", f"demo:jobs={jobs}", "fifo", seed=seed) for jobs in (6, 3) for seed in (0, 1)]


@pytest.mark.processes
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


@pytest.mark.processes
def test_no_process_is_left_behind_after_an_error() -> None:
    with pytest.raises(InputError, match="no trace file"):
        run_all([*SPECS, RunSpec("sia-homo-64", "nowhere", "fifo")], 2)
    assert [child for child in multiprocessing.active_children() if child.is_alive()] == []


@pytest.mark.processes
def test_an_error_waits_for_processes_that_end_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    terminate = BaseProcess.terminate
    monkeypatch.setattr(
        BaseProcess, "terminate", lambda worker: threading.Timer(0.5, terminate, [worker]).start()
    )
    with pytest.raises(InputError, match="no trace file"):
        run_all([RunSpec("sia-homo-64", "nowhere", "fifo"), *SPECS * 4], 2)
    assert [child for child in multiprocessing.active_children() if child.is_alive()] == []


def test_one_simulation_a_core_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def beside(specs: Sequence[RunSpec], workers: int, *rest: object) -> list[Done]:
        asked.append(workers)
        return [Done(DUMMY, 1.0) for _ in specs]

    monkeypatch.setattr(sweep, "run_in_processes", beside)
    monkeypatch.setattr(sweep, "cores", lambda: 3)
    run_all(SPECS)
    run_all(SPECS, 2)
    run_all(SPECS, 64)
    assert asked == [3, 2, 4]  # never more than there are runs


def test_cores_are_those_that_this_process_may_use() -> None:
    assert 1 <= cores() <= (os.cpu_count() or 1)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("workers", [1, 2])
def test_what_is_finished_is_taken_and_the_rest_is_run(tmp_path: Path, workers: int) -> None:
    finished = Finished(tmp_path)
    run_all(SPECS[1:3], workers, finished=finished)
    done = run_each(SPECS, workers, finished=finished)
    assert [one.was_kept for one in done] == [False, True, True, False]
    assert [(len(one.result.requests.jobs), one.result.seed) for one in done] == [
        (6, 0),
        (6, 1),
        (3, 0),
        (3, 1),
    ]
    assert [one.was_kept for one in run_each(SPECS, workers, finished=finished)] == [True] * 4


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_leaves_what_was_finished_before_it(tmp_path: Path, workers: int) -> None:
    finished = Finished(tmp_path)
    with pytest.raises(InputError, match="no trace file"):
        run_all([*SPECS[:1], RunSpec("sia-homo-64", "nowhere", "fifo")], 1, finished=finished)
    assert [one.was_kept for one in run_each(SPECS[:2], workers, finished=finished)] == [True, False]


@pytest.mark.slow
def test_ctrl_c_leaves_what_was_finished_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finished = Finished(tmp_path)

    def interrupted(spec: RunSpec, *rest: Any) -> Any:
        if spec == SPECS[1]:
            raise KeyboardInterrupt
        return run_spec(spec, *rest)

    monkeypatch.setattr(sweep, "run_spec", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_all(SPECS, 1, finished=finished)
    monkeypatch.undo()
    assert [one.was_kept for one in run_each(SPECS, 1, finished=finished)] == [True, False, False, False]


def test_a_surprise_names_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def surprise(spec: RunSpec, *rest: object) -> None:
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr(sweep, "run_spec", surprise)
    with pytest.raises(RunFailed, match=r"fifo on demo:jobs=6, seed 0: ZeroDivisionError: by nothing"):
        run_all(SPECS[:1])


def test_a_folder_that_cannot_be_written_costs_no_result(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said: list[str] = []
    results = run_all(SPECS[2:], 1, finished=Finished(tmp_path / "file"), say=said.append)
    assert [result.seed for result in results] == [0, 1]
    assert [line for line in said if "not kept" in line] == [f"not kept in {tmp_path / 'file'}: File exists"]


def test_without_a_terminal_each_finished_run_is_a_line(tmp_path: Path) -> None:
    said: list[str] = []
    finished = Finished(tmp_path)
    run_all(SPECS[:1], finished=finished)
    run_all(SPECS[:3], 1, finished=finished, say=said.append)
    assert said[0] == "3 simulations, 1 of them done before"
    assert re.match(r"fifo on demo:jobs=6, seed 1: \d+\.\d s; 2 of 3 done, about ", said[1])
    assert said[2].endswith("; 3 of 3 done")
    run_all(SPECS[:3], 1, finished=finished, say=said.append)
    assert said[3:] == ["3 simulations, all of them done before"]


def test_nothing_is_said_where_nobody_listens(capsys: pytest.CaptureFixture[str]) -> None:
    run_all(SPECS[2:], 1)
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "")


def test_the_bars_are_those_of_what_runs_and_one_for_all() -> None:
    from rich.console import Console
    from rich.progress import Progress

    progress = Progress(console=Console(quiet=True))
    bars = Bars(SPECS, 2, progress)
    assert [(task.description, task.completed, task.total) for task in progress.tasks] == [("all", 2, 6)]
    bars.advance(0, 0, 0)
    bars.advance(1, 0, 6)
    bars.advance(1, 3, 6)
    shown = [(task.description, task.completed, task.total) for task in progress.tasks]
    assert shown == [("all", 2.5, 6), ("fifo · demo:jobs=6", 0, None), ("fifo · demo:jobs=6", 3, 6)]
    bars.finish(1, 1.0)
    bars.advance(1, 6, 6)  # told too late
    assert [(task.description, task.completed) for task in progress.tasks][1:] == [("fifo · demo:jobs=6", 0)]
    assert progress.tasks[0].completed == 3
    assert progress.tasks[0].fields["words"].startswith("3 of 6 done, about ")


def test_the_time_left_follows_the_pace_so_far() -> None:
    assert time_left_s(elapsed_s=60.0, work=2.0, simulations=6) == 120.0
    assert time_left_s(elapsed_s=1.0, work=0.0, simulations=6) is None  # nobody can tell
    assert time_left_s(elapsed_s=60.0, work=6.0, simulations=6) is None  # nothing is left


def test_a_line_says_nothing_of_a_run_that_only_moves() -> None:
    said: list[str] = []
    lines = Lines(SPECS, 0, said.append)
    lines.advance(0, 1, 6)
    assert said == []
