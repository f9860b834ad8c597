"""`--figures DIR`: the same option and the same kinds of files for every command that has a page."""

import csv
from pathlib import Path
from typing import Any

import pytest

from .ran import Stretto

COMPARE = ("compare", "-c", "tiny.yaml", "-t", "four.csv", "--policies", "fifo,srtf", "--out", "out")


@pytest.fixture(autouse=True)
def no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """What makes PNG is not installed."""
    monkeypatch.setattr("stretto.report.figure_file.find_spec", lambda name: None)


def rows(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_compare_writes_each_figure_and_all_of_its_data(tiny: Path, stretto: Stretto) -> None:
    ran = stretto(*COMPARE, "--workers", 1, "--figures", "drawn/here")
    assert ran.status == 0
    assert "figures are SVG only: for PNG install stretto[png]\n" in ran.err
    assert ran.err.endswith("figures: drawn/here\n")
    folder = tiny / "drawn" / "here"
    figures = rows(folder / "figures.csv")
    assert {each["figure"] for each in figures} == {path.stem for path in folder.glob("*.svg")}
    assert {each["data"] for each in figures} == {"jobs.csv", "rounds.csv", "allocations.csv"}
    jobs = rows(folder / "jobs.csv")
    assert [(each["policy"], each["job"]) for each in jobs] == [
        (policy, job) for policy in ("fifo", "srtf") for job in "abcd"
    ]
    assert [each["queue_s"] for each in jobs[:4]] == ["0.0", "0.0", "0.0", "70.0"]
    assert jobs[0]["lateness_s"] == ""  # there is no deadline
    assert {each["policy"] for each in rows(folder / "policies.csv")} == {"fifo", "srtf"}
    assert {each["trace"] for each in rows(folder / "rounds.csv")} == {"four"}


def test_the_object_of_compare_says_where_figures_are_only_where_there_are_some(
    tiny: Path, stretto: Stretto
) -> None:
    words = (*COMPARE, "--workers", 1, "--no-bounds", "--json")
    assert list(stretto(*words).json) == ["runs", "report"]
    assert stretto(*words, "--figures", "drawn").json["figures"] == "drawn"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param((*COMPARE, "--figures", "tiny.yaml"), "expected a directory, but", id="compare"),
        pytest.param(
            ("reproduce", "sia-scaling", "--synthetic", "--figures", "tiny.yaml"),
            "expected a directory, but",
            id="reproduce",
        ),
        pytest.param(("usage", "--figures", "tiny.yaml"), "expected a directory, but", id="usage"),
        pytest.param(("reproduce", "--figures", "drawn"), "expected a table that is made", id="a list"),
    ],
)
def test_a_folder_that_cannot_be_is_refused_before_anything_runs(
    words: tuple[str, ...], message: str, tiny: Path, stretto: Stretto
) -> None:
    ran = stretto(*words)
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith("stretto: --figures ")
    assert message in ran.err
    assert ran.err.count("\n") == 1
    assert sorted(path.name for path in tiny.iterdir()) == ["four.csv", "tiny.yaml"]


def test_a_folder_that_becomes_unwritable_is_one_line(
    tiny: Path, stretto: Stretto, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("stretto.report.export.svg_file", full)
    ran = stretto(*COMPARE, "--workers", 1, "--no-bounds", "--figures", "drawn")
    assert ran.status == 2
    assert ran.err.splitlines()[-1] == "stretto: --figures drawn: cannot be written: No space left on device"
