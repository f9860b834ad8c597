"""The figures of a table made again, as files: one for each metric, and every row of the table."""

import csv
from pathlib import Path

import pytest

from stretto.experiments.all_tables import Table
from stretto.experiments.figure_export import NOTHING_DRAWN, write_reproduction_figures
from stretto.experiments.present import reproduced, reproduced_before
from stretto.experiments.reproduction import Reproduction, Row
from stretto.report.figure_file import NO_LIBRARY

ROWS = (
    Row("philly/sia", "avg_jct_h", 0.6, 0.63),
    Row("philly/gavel", "avg_jct_h", 1.9, 1.0),
    Row("philly/sia", "jobs / GPU", 2.0, 2.1),
    Row("philly/sia", "jobs - GPU", 2.0, 2.1),
    Row("philly/sia", "figures", 3.0, 3.0),
    Row("64 GPUs", "policy_ms_p50", 96.0, 1.92, "at most"),
)


@pytest.fixture(autouse=True)
def no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """What makes PNG is not installed."""
    monkeypatch.setattr("stretto.report.figure_file.find_spec", lambda name: None)


def written(rows: tuple[Row, ...], folder: Path) -> str:
    made = Reproduction("sia-table3", "Sia (SOSP 2023), table 3", (), rows, wall_s=1.0)
    return write_reproduction_figures(made, reproduced(made, "stretto reproduce", "today"), folder)


def lines(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.reader(file))


def test_each_metric_has_a_figure_whose_file_no_other_takes(tmp_path: Path) -> None:
    assert written(ROWS, tmp_path) == NO_LIBRARY
    names = [line[0] for line in lines(tmp_path / "figures.csv")[1:]]
    assert names[0] == "avg_jct_h-philly"
    assert names[1:4] == ["jobs---gpu", "jobs---gpu-2", "figures-3"]
    assert names[-4:-2] == ["avg_jct_h-over-paper", "jobs---gpu-over-paper"]
    assert len(names) == len(set(names)) == 9, "and one for the limit, which has no ratio"
    assert {path.stem for path in tmp_path.glob("*.svg")} == {*names}


def test_what_stands_where_in_the_figures_is_a_sheet(tmp_path: Path) -> None:
    curve = [Row(f"{gpus} GPUs: sia", "avg_jct_h", None, 64 / gpus) for gpus in (16, 32, 64)]
    half = Row("16 GPUs: sia", "avg_jct_h_plus_minus", None, 0.5)
    written((*curve, half), tmp_path)
    header, first, *_ = lines(tmp_path / "points.csv")
    assert header == ["figure", "series", "bar", "x", "row", "metric", "ours", "plus_minus", "paper", "bound"]
    assert first == ["avg_jct_h-sia", "", "", "16.0", "16 GPUs: sia", "avg_jct_h", "4.0", "0.5", "", ""]


def test_a_table_of_an_earlier_command_is_drawn_as_one_of_this(tmp_path: Path) -> None:
    made = Reproduction("sia-table3", "Sia (SOSP 2023), table 3", (), ROWS, wall_s=1.0, made_on="2026-01-01")
    table = Table.of_json(made.as_json())
    content = reproduced_before(made.name, made.paper, table)
    assert write_reproduction_figures(table, content, tmp_path / "before") == NO_LIBRARY
    written(ROWS, tmp_path / "now")
    for name in ("table.csv", "points.csv", "figures.csv"):
        assert (tmp_path / "before" / name).read_bytes() == (tmp_path / "now" / name).read_bytes()
    assert "2026-01-01" in (tmp_path / "before" / "avg_jct_h-philly.svg").read_text(encoding="utf-8")


def test_the_table_is_there_whole_with_limits_and_verdicts(tmp_path: Path) -> None:
    written(ROWS, tmp_path)
    header, *table = lines(tmp_path / "table.csv")
    assert header == ["row", "metric", "bound", "paper", "ours", "ratio", "verdict"]
    assert [line[:2] for line in table] == [[row.row, row.metric] for row in ROWS]
    assert table[-1][2:] == ["at most", "96.0", "1.92", "0.02", "reproduced"]


def test_where_one_value_stands_alone_the_table_is_written_and_the_command_says_so(tmp_path: Path) -> None:
    assert written((Row("a", "avg_jct_h", None, 1.0),), tmp_path) == NOTHING_DRAWN
    assert lines(tmp_path / "table.csv")[1] == ["a", "avg_jct_h", "", "", "1.0", "", "not compared"]
    assert list(tmp_path.glob("*.svg")) == []
