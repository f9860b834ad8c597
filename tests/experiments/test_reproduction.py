"""What a paper's table asks for, and what it gives back."""

import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from stretto.experiments.finished import Finished
from stretto.experiments.published import EXPERIMENTS, experiment_of
from stretto.experiments.reproduction import (
    OWNERS,
    Experiment,
    Input,
    Made,
    Request,
    Row,
    commit_of_code,
    data_root,
    data_set,
)
from stretto.experiments.spec import RunSpec, set_up
from stretto.model import InputError
from stretto.sim.result import Result
from stretto.sim.run import Setup
from stretto.traces.workload import Workload

SPECS = [RunSpec("sia-homo-64", "demo:jobs=3", "fifo", seed=seed) for seed in (0, 1)]


class Counted(Exception):
    """Enough is known."""


@dataclass(frozen=True)
class Counting(Request):
    """Says how many simulations are asked for first, instead of running them."""

    def run(self, specs: Sequence[RunSpec], workers: int | None = None) -> list[Result]:
        raise Counted(len(specs))

    def run_with(self, spec: RunSpec, workload: Workload, setup: Setup) -> Result:
        raise Counted(1)


def two(request: Request) -> Made:
    results = [result for spec in SPECS for result in request.run([spec])]
    rows = [Row(f"seed {one.seed}", "jobs", 2.0, float(len(one.completed_s))) for one in results]
    return [Input("demo", False, "made")], rows, ("a note",)


MADE = Experiment("two", "Nobody (2020), table 2", "", two, simulations=2, takes="1 s")


def test_a_table_counts_its_simulations_and_those_that_were_there(tmp_path: Path) -> None:
    Request(None, finished=Finished(tmp_path)).run(SPECS[:1])
    made = MADE.run(Request(None, finished=Finished(tmp_path)))
    assert (made.tally.simulations, made.tally.kept) == (2, 1)
    assert made.tally.simulated_s > 0
    assert [(one.row, one.ours, one.ratio) for one in made.rows] == [
        ("seed 0", 3.0, 1.5),
        ("seed 1", 3.0, 1.5),
    ]


def test_a_table_without_simulations_says_how_long_a_core_worked_for_it() -> None:
    def work(request: Request) -> Made:
        until_s = time.process_time() + 0.05
        while time.process_time() < until_s:
            pass
        return [], [], ()

    assert Experiment("none", "Nobody (2020), table 3", "", work).run(Request(None)).tally.processor_s > 0.02


def test_without_a_folder_nothing_is_kept() -> None:
    assert MADE.run(Request(None)).tally.kept == 0
    assert MADE.run(Request(None)).tally.kept == 0


@pytest.mark.parametrize(
    ("row", "ratio"),
    [
        pytest.param(Row("a", "x", 2.0, 3.0), 1.5, id="ours over the paper's"),
        pytest.param(Row("a", "x", None, 3.0), None, id="not published"),
        pytest.param(Row("a", "x", 2.0, None), None, id="does not apply"),
        pytest.param(Row("a", "x", 0.0, 3.0), None, id="of nothing"),
    ],
)
def test_a_row_has_a_ratio(row: Row, ratio: float | None) -> None:
    assert row.ratio == ratio


def test_only_a_limit_of_the_paper_has_a_bound_in_the_json() -> None:
    def rows(request: Request) -> Made:
        return [], [Row("a", "x", 2.0, 3.0), Row("b", "x", 2.0, 1.0, "at most")], []

    said = Experiment("one", "Nobody (2020)", "", rows).run(Request(None)).as_json()["rows"]
    assert said == [
        {"row": "a", "metric": "x", "paper": 2.0, "ours": 3.0, "ratio": 1.5, "verdict": "contradicted"},
        {
            "row": "b",
            "metric": "x",
            "paper": 2.0,
            "ours": 1.0,
            "ratio": 0.5,
            "verdict": "reproduced",
            "bound": "at most",
        },
    ]


def test_a_table_of_a_part_of_its_workload_says_of_how_much() -> None:
    part = replace(MADE, share=0.1)
    assert part.run(Request(None)).scale == 0.1
    assert part.run(Request(None, scale=0.5)).scale == 0.05


def test_a_table_of_made_data_needs_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STRETTO_DATA", raising=False)
    assert data_root("", "") is None
    assert MADE.as_json() == {
        "name": "two",
        "paper": "Nobody (2020), table 2",
        "data": None,
        "published_at": None,
        "simulations": 2,
        "takes": "1 s",
        "not_whole": None,
        "private": None,
        "causes": False,
    }


@pytest.mark.parametrize("name", ["sia", "chronus", "inference", "ones", "philly", "helios"])
def test_an_absent_data_set_is_named_with_its_publisher(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STRETTO_DATA", raising=False)
    with pytest.raises(InputError) as without:
        data_root("", name)
    with pytest.raises(InputError) as empty:
        data_set(tmp_path, name, "file.csv")
    assert OWNERS[name] in str(without.value)
    assert OWNERS[name] in str(empty.value)
    assert f"expected {name}/file.csv below" in str(empty.value)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_table_names_a_paper_and_a_data_set_that_somebody_publishes(name: str) -> None:
    one = experiment_of(name)
    assert one.name == name
    assert one.paper
    assert one.data == "" or one.data in OWNERS


def test_an_unknown_table_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"unknown table 'sia-table33', did you mean 'sia-table3'"):
        experiment_of("sia-table33")


def test_a_run_that_words_alone_cannot_say_is_counted_and_shown_too() -> None:
    request = Request(None)
    result = request.run_with(SPECS[0], *set_up(SPECS[0]))
    assert result.done.all()
    assert (request.tally.simulations, set(request.tally.shown)) == (1, {"fifo"})


@pytest.mark.data
@pytest.mark.parametrize("name", [name for name, one in EXPERIMENTS.items() if one.simulations])
def test_a_whole_table_has_as_many_simulations_as_it_says(name: str, data_dir: Path) -> None:
    one = EXPERIMENTS[name]
    with pytest.raises(Counted) as counted:
        one.run(Counting(data_dir if one.data else None))
    (first,) = counted.value.args  # a table may ask for more once it knows these
    assert first <= one.simulations
    assert first == one.simulations or not name.startswith("sia")


@pytest.mark.processes
def test_a_table_names_the_commit_that_is_checked_out() -> None:
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        pytest.skip("the tests do not lie in a checkout")
    asked = subprocess.run(
        ["git", "-C", root, "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    )
    assert commit_of_code() == asked.stdout[:12]
