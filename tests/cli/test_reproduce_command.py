"""`stretto reproduce`: published tables made again from made data, and from the real data where they lie."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stretto.experiments import sia

from .ran import Stretto

SHAPE = ["name", "paper", "inputs", "rows", "notes", "wall_s"]
NAMES = ("sia-table3", "sia-table4", "sia-fairness", "sia-scaling")


@pytest.fixture(autouse=True)
def few_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handful of jobs of each workload shows as much about the command as forty."""
    monkeypatch.setattr(sia, "LEAST_JOBS", 6)


Reproduced = Callable[..., Any]
MADE: dict[tuple[object, ...], Any] = {}  # each table is made once, and looked at by several tests


@pytest.fixture
def reproduced(stretto: Stretto) -> Reproduced:
    def run(*words: object) -> Any:
        if words not in MADE:
            ran = stretto("reproduce", *words, "--scale", 0.02, "--workers", 1, "--json")
            assert ran.status == 0, ran.err
            MADE[words] = ran.json
        return MADE[words]

    return run


@pytest.mark.parametrize("name", NAMES)
def test_a_table_from_made_data_says_so_of_every_input(name: str, reproduced: Reproduced) -> None:
    made = reproduced(name, "--synthetic")
    assert list(made) == SHAPE
    assert made["name"] == name
    assert made["paper"].startswith("Sia (SOSP 2023), ")
    assert [one["real"] for one in made["inputs"]] == [False] * len(made["inputs"])
    assert all(one["what"] and one["note"] for one in made["inputs"])
    assert made["wall_s"] > 0


@pytest.mark.parametrize("name", NAMES)
def test_every_row_has_our_figure_and_its_ratio_to_the_paper_s(name: str, reproduced: Reproduced) -> None:
    for row in reproduced(name, "--synthetic")["rows"]:
        assert list(row) == ["row", "metric", "paper", "ours", "ratio"]
        assert row["ours"] >= 0
        if row["paper"] is None:
            assert row["ratio"] is None
        else:
            assert row["ratio"] == pytest.approx(row["ours"] / row["paper"])


def test_table_3_has_all_that_the_paper_printed(reproduced: Reproduced) -> None:
    rows = {
        (one["row"], one["metric"]): one["paper"] for one in reproduced("sia-table3", "--synthetic")["rows"]
    }
    assert rows["philly/sia", "avg_jct_h"] == 0.6
    assert rows["newtrace/gavel", "max_contention"] == 243
    assert rows["helios/pollux", "restarts_per_job"] == 5.3
    assert rows["philly: gavel / sia", "avg_jct_h"] == pytest.approx(1.9 / 0.6)
    printed = 3 * 3 * 7  # families, policies, columns
    factors = 3 * 2 * 2
    assert len(rows) == printed + factors


def test_on_a_pipe_a_table_is_plain_and_its_inputs_are_said_beside_it(stretto: Stretto) -> None:
    ran = stretto("reproduce", "sia-scaling", "--synthetic", "--scale", 0.02)
    assert ran.table[0] == ["row", "metric", "paper", "ours", "ratio"]
    assert ran.table[1][:3] == ["64 GPUs", "policy_ms_p50", "96"]
    assert {len(row) for row in ran.table} == {5}
    assert ran.err.startswith("SYNTHETIC: synthetic-sia:jobs=160,hours=8,seed=0 (")


def test_the_scale_says_how_much_of_each_workload_runs(
    stretto: Stretto, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sia, "LEAST_JOBS", 1)
    few, more = (
        stretto("reproduce", "sia-scaling", "--synthetic", "--scale", scale, "--json").json["inputs"][0]
        for scale in (0.02, 0.06)
    )
    assert few["note"].endswith("jobs on sia-hetero-64")
    assert int(few["note"].split()[0]) < int(more["note"].split()[0]) < 40


def test_a_set_that_lacks_its_workloads_is_named_with_its_publisher(tiny: Path, stretto: Stretto) -> None:
    (tiny / "data" / "sia" / "workloads").mkdir(parents=True)
    ran = stretto("reproduce", "sia-table4", "--data", "data")
    assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "expected sia/workloads/philly below data" in ran.err
    assert "github.com/siasosp23/artifacts" in ran.err


def test_a_folder_without_files_is_named(tiny: Path, stretto: Stretto) -> None:
    (tiny / "data" / "sia" / "workloads" / "philly").mkdir(parents=True)
    ran = stretto("reproduce", "sia-table4", "--data", "data")
    assert (ran.status, ran.err) == (
        2,
        "stretto: data/sia/workloads/philly: expected files workload-*.csv, found none\n",
    )


def test_the_data_folder_may_be_named_by_the_environment(
    tiny: Path, stretto: Stretto, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRETTO_DATA", "nowhere")
    ran = stretto("reproduce", "sia-table4")
    assert (ran.status, ran.err.count("\n")) == (2, 1)
    assert ran.err.startswith("stretto: $STRETTO_DATA nowhere: expected a folder with the data set 'sia'")


@pytest.mark.data
@pytest.mark.parametrize("name", ["sia-table4", "sia-scaling"])
def test_a_table_from_the_public_data_says_that_they_are_real(
    name: str, data_dir: Path, reproduced: Reproduced
) -> None:
    made = reproduced(name, "--data", data_dir)
    assert [one["real"] for one in made["inputs"]] == [True] * len(made["inputs"])
    assert all(row["ours"] >= 0 for row in made["rows"])
