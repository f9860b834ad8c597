"""`stretto reproduce`: published tables made again from made data, and from the real data where they lie."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stretto.cli.reproduce import table_rows
from stretto.experiments.published import EXPERIMENTS
from stretto.experiments.reproduction import Row, verdicts_of
from stretto.experiments.sia import comparison as sia
from stretto.experiments.sia import workloads
from stretto.experiments.spec import RunSpec, run_spec

from .ran import Stretto

SHAPE = ["name", "paper", "inputs", "rows", "verdict", "shown", "notes", "wall_s", "simulations"]
SHAPE += ["simulated_s", "processor_s", "kept", "scale", "made_on", "private", "commit"]
NAMES = ("sia-table3", "sia-table4", "sia-fairness", "sia-scaling")


@pytest.fixture(autouse=True)
def few_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handful of jobs of each workload shows as much about the command as forty."""
    monkeypatch.setattr(workloads, "LEAST_JOBS", 6)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Finished simulations are kept in a folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("sys.platform", "linux")
    return tmp_path / "cache"


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


@pytest.mark.heavy
@pytest.mark.parametrize("name", NAMES)
def test_a_table_from_made_data_says_so_of_every_input(name: str, reproduced: Reproduced) -> None:
    made = reproduced(name, "--synthetic")
    assert list(made) == SHAPE
    assert made["name"] == name
    assert made["paper"].startswith("Sia (SOSP 2023), ")
    assert [one["real"] for one in made["inputs"]] == [False] * len(made["inputs"])
    assert all(one["what"] and one["note"] for one in made["inputs"])
    assert made["wall_s"] > 0


@pytest.mark.heavy
@pytest.mark.parametrize("name", NAMES)
def test_every_row_has_our_figure_and_its_ratio_to_the_paper_s(name: str, reproduced: Reproduced) -> None:
    for row in reproduced(name, "--synthetic")["rows"]:
        shape = ["row", "metric", "paper", "ours", "ratio", "verdict"]
        assert list(row) == [*shape, *(["bound"] if "bound" in row else [])]
        assert row["ours"] >= 0
        if row["paper"] is None:
            assert row["ratio"] is None
        else:
            assert row["ratio"] == pytest.approx(row["ours"] / row["paper"])


@pytest.mark.slow
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
    times = 3 * 2  # of decisions, from the text of section 5.6
    assert rows["helios/gavel", "policy_ms_p95"] == 28
    assert len(rows) == printed + factors + times


def test_on_a_pipe_a_table_is_plain_and_its_inputs_are_said_beside_it(stretto: Stretto) -> None:
    ran = stretto("reproduce", "sia-scaling", "--synthetic", "--scale", 0.02)
    assert ran.table[0] == ["row", "metric", "paper", "ours", "ratio", "verdict"]
    assert ran.table[1][:3] == ["64 GPUs", "policy_ms_p50", "<= 96"]
    assert {len(row) for row in ran.table} == {6}
    lines = ran.err.splitlines()
    assert lines[0] == "1 simulation"
    assert lines[1].startswith("sia on synthetic-sia:jobs=160,hours=8,seed=0, seed 0: ")
    assert lines[2].startswith("verdict: ")
    assert lines[3].startswith("SYNTHETIC: synthetic-sia:jobs=160,hours=8,seed=0 (")
    assert lines[-2].startswith("shown to sia: goodput model")
    assert lines[-1].endswith(" s")


WHOLE = len(sia.TABLE_4)  # its simulations at this scale: one for each policy
TABLE4 = ("reproduce", "sia-table4", "--synthetic", "--scale", 0.02, "--workers", 1)
RUNS = len(sia.TABLE_4)  # at that scale one for each policy


@pytest.mark.heavy
def test_a_repeated_command_takes_what_is_done(stretto: Stretto, cache: Path) -> None:
    first, second = (stretto(*TABLE4, "--json") for _ in range(2))
    assert (first.json["simulations"], first.json["kept"]) == (WHOLE, 0)
    assert (second.json["simulations"], second.json["kept"]) == (WHOLE, WHOLE)
    assert second.json["rows"] == first.json["rows"]
    assert second.err == f"{WHOLE} simulations, all of them done before\n"
    assert len(list(cache.glob("stretto/finished/*.npz"))) == WHOLE
    assert stretto(*TABLE4, "--fresh", "--json").json["kept"] == 0


@pytest.mark.heavy
def test_an_interrupted_command_goes_on_where_it_was(
    stretto: Stretto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[RunSpec] = []

    def interrupted(spec: RunSpec, *rest: Any) -> Any:
        begun.append(spec)
        if len(begun) == 3:
            raise KeyboardInterrupt
        return run_spec(spec, *rest)

    words = (*TABLE4, "--keep", tmp_path / "kept", "--json")
    monkeypatch.setattr("stretto.experiments.sweep.run_spec", interrupted)
    broken = stretto(*words)
    assert broken.status == 130
    assert broken.err.splitlines()[-2:] == [
        f"finished simulations are in {tmp_path / 'kept'}: the same command goes on from there",
        "stretto: interrupted",
    ]
    monkeypatch.setattr("stretto.experiments.sweep.run_spec", run_spec)
    ran = stretto(*words)
    assert (ran.json["simulations"], ran.json["kept"]) == (WHOLE, 2)
    assert ran.err.startswith(f"{WHOLE} simulations, 2 of them done before\n")


@pytest.mark.heavy
def test_a_damaged_file_is_ignored_with_a_line(stretto: Stretto, cache: Path) -> None:
    first = stretto(*TABLE4, "--json")
    damaged = next(cache.glob("stretto/finished/pollux-*.npz"))
    damaged.write_bytes(b"nothing")
    second = stretto(*TABLE4, "--json")
    assert second.err.splitlines()[0].startswith(f"ignored, and simulated again: {damaged}: ")
    assert (second.json["kept"], second.json["rows"]) == (WHOLE - 1, first.json["rows"])


def test_a_folder_that_cannot_keep_anything_is_refused(stretto: Stretto, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ran = stretto(*TABLE4, "--keep", tmp_path / "file")
    assert (ran.status, ran.err) == (
        2,
        f"stretto: --keep {tmp_path}/file: expected a directory, but {tmp_path}/file is a file\n",
    )


@pytest.mark.slow
def test_without_a_usual_folder_nothing_is_kept_and_that_is_said(stretto: Stretto, cache: Path) -> None:
    cache.touch()
    ran = stretto(*TABLE4, "--json")
    assert (ran.status, ran.json["simulations"]) == (0, WHOLE)
    assert ran.err.startswith("finished simulations are not kept: ")


@pytest.mark.parametrize("words", [(), ("--list",)])
def test_the_tables_are_listed(stretto: Stretto, words: tuple[str, ...]) -> None:
    ran = stretto("reproduce", *words)
    assert ran.table[0] == ["name", "paper", "data", "simulations", "takes", "not whole, since", "causes"]
    assert [row[0] for row in ran.table[1:]] == list(EXPERIMENTS)
    listed = stretto("reproduce", *words, "--json").json["tables"]
    assert [one["name"] for one in listed] == list(EXPERIMENTS)
    assert set(listed[0]) == {
        "name",
        "paper",
        "data",
        "published_at",
        "simulations",
        "takes",
        "not_whole",
        "private",
        "causes",
    }


def test_a_table_and_the_list_are_too_much_at_once(stretto: Stretto) -> None:
    ran = stretto("reproduce", "sia-table4", "--list")
    assert (ran.status, ran.err) == (2, "stretto: expected a table or --list, got both: sia-table4\n")


def test_on_a_terminal_a_name_stands_on_the_first_of_its_rows() -> None:
    rows = (Row("a", "x", 1.0, 2.0), Row("b", "x", None, 120.4), Row("a", "y", 3.0, None))
    apart = [
        ["a", "x", "1", "2", "2", "contradicted"],
        ["", "y", "3", "-", "-", "-"],
        ["b", "x", "-", "120", "-", "-"],
    ]
    assert table_rows(rows, verdicts_of(rows), apart=True) == apart
    assert [line[0] for line in table_rows(rows, verdicts_of(rows), apart=False)] == ["a", "a", "b"]


def test_a_limit_has_a_sign_before_it() -> None:
    rows = (Row("a", "x", 1.0, 2.0, "at most"), Row("b", "x", 0.9, 1.0, "at least"))
    assert [line[2] for line in table_rows(rows, verdicts_of(rows), apart=False)] == ["<= 1", ">= 0.9"]


@pytest.mark.slow
def test_the_scale_says_how_much_of_each_workload_runs(
    stretto: Stretto, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workloads, "LEAST_JOBS", 1)
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


@pytest.mark.slow
def test_a_page_is_written_beside_the_table(stretto: Stretto, tmp_path: Path) -> None:
    page = tmp_path / "deep" / "table.html"
    ran = stretto(*TABLE4, "--out", page)
    assert (ran.status, ran.table[0][:2]) == (0, ["row", "metric"])
    assert ran.err.splitlines()[-1] == f"page: {page}"
    words = page.read_text(encoding="utf-8")
    assert "Made data: no figure of this page confirms anything" in words
    assert "philly/pollux" in words
    assert f"{WHOLE} simulations" in words


@pytest.mark.parametrize("name", ["page.txt", "folder.html", "file/page.html"])
def test_a_page_that_cannot_be_written_is_refused_before_anything_runs(
    stretto: Stretto, tmp_path: Path, name: str
) -> None:
    (tmp_path / "folder.html").mkdir()
    (tmp_path / "file").touch()
    ran = stretto(*TABLE4, "--out", tmp_path / name)
    assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert ran.err.startswith("stretto: --out ")
