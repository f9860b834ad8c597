"""`stretto reproduce --all`: every table, whatever becomes of one of them, and the page that shows all."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from stretto.experiments import published
from stretto.experiments.causes import Figure, Series, Switch, switched_runs, value_of
from stretto.experiments.reproduction import Experiment, Input, Made, Request, Row
from stretto.experiments.spec import RunSpec

from .ran import Stretto

TRACE = "synthetic-philly:jobs=3,hours=1"


def simulated(request: Request) -> Made:
    """A table of two real, small simulations."""
    specs = [
        RunSpec("sia-homo-64", TRACE, "fifo"),
        RunSpec("sia-homo-64", TRACE, "cornucopia", settings={"policy.profile": "instant"}),
    ]
    results = request.run(specs)
    rows = [
        Row(f"philly/{result.policy}", "jobs", 3.0, float(len(result.requests.jobs))) for result in results
    ]
    return (
        [Input("three jobs", False, "made here")],
        [*rows, Row("philly/x", "jobs", None, 1.0)],
        ["A | note."],
    )


def switched(request: Request) -> Series:
    """Its jobs, and twice as many."""
    specs = [RunSpec("sia-homo-64", TRACE, "fifo")]
    rows = switched_runs(
        request,
        specs,
        [Switch("twice the jobs", trace={"jobs": "6"})],
        lambda results: [value_of([float(len(result.requests.jobs)) for result in results])],
    )
    return Series((Figure("philly/fifo", "jobs", 3.0),), tuple(rows))


def broken_series(request: Request) -> Series:
    """A series with a fault."""
    raise ZeroDivisionError("nothing can be switched")


def several() -> list[Experiment]:
    """Two tables of three small simulations each."""

    def table(policies: Sequence[str], jobs: int) -> Callable[[Request], Made]:
        def make(request: Request) -> Made:
            trace = f"synthetic-philly:jobs={jobs},hours=1"
            results = request.run([RunSpec("sia-homo-64", trace, policy) for policy in policies])
            rows = [Row(each.policy, "jct", None, each.summary()["avg_jct_s"]) for each in results]
            return [Input("made jobs", False, "made here")], rows, []

        return make

    return [
        Experiment("a-first", "A (X 2020), table 1", "", table(("fifo", "tiresias", "sia"), 60), 3),
        Experiment("b-second", "B (X 2020), table 2", "", table(("fifo", "tiresias", "sia"), 61), 3),
    ]


def broken(request: Request) -> Made:
    """A table with a fault."""
    raise ZeroDivisionError("there is nothing to divide by")


def measured(request: Request) -> Made:
    """A table without simulations."""
    rows = [Row("one", "s", 1.0, 2.0, "at most"), Row("two", "s", 4.0, 4.0)]
    return [Input("this machine", True, "timed here")], rows, []


@pytest.fixture(autouse=True)
def tables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Four tables: one of simulations, one that breaks, one whose data are absent, one that measures."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("STRETTO_DATA", raising=False)
    entries = (
        Experiment("a-simulated", "A (X 2020), table 1", "", simulated, 2, causes=switched),
        Experiment("b-broken", "B (X 2020), table 1", "", broken),
        Experiment("c-absent", "C (X 2020), table 1", "sia", measured),
        Experiment(
            "d-measured",
            "D (X 2020), table 1",
            "",
            measured,
            not_whole="it would take a week",
            causes=broken_series,
        ),
    )
    monkeypatch.setattr(published, "EXPERIMENTS", {entry.name: entry for entry in entries})


def test_every_table_is_made_and_those_that_cannot_be_are_named(stretto: Stretto, tmp_path: Path) -> None:
    ran = stretto("reproduce", "--all", "--workers", 1, "--out", tmp_path / "results")
    assert ran.status == 1, "since one broke"
    assert "failed: b-broken" in ran.err
    assert "not made: c-absent" in ran.err
    page = (tmp_path / "results" / "results.md").read_text(encoding="utf-8")
    lines = page.splitlines()
    verdicts = "reproduced | same order | undecided | contradicted | data private | not compared"
    assert f"| rows | compared | {verdicts} |" in lines
    assert "| 5 | 4 | 3 | 0 | 0 | 1 | 0 | 1 |" in lines
    summaries = {
        line.split(" |")[0]: line.split(" | ") for line in lines if " (X 2020)" in line and "|" in line
    }
    assert [cells[2] for cells in summaries.values()] == ["reproduced", "failed", "not made", "contradicted"]
    assert summaries["| [a-simulated](#a-simulated)"][3:11] == ["2", "0", "0", "0", "0", "made", "1", ""]
    assert "It failed: ZeroDivisionError: there is nothing to divide by" in lines
    assert "Not made whole within half an hour: it would take a week." in lines
    assert "| one | s | ≤ 1 | 2 | 2 | contradicted |" in lines
    assert any(
        line.startswith("- Shown to `cornucopia`: ") and "policy.profile=instant" in line for line in lines
    )
    assert "- Shown to `fifo`: what jobs ask for and hold." in lines
    kept = json.loads((tmp_path / "results" / "a-simulated.json").read_text(encoding="utf-8"))
    assert kept["verdict"] == "reproduced"
    assert [row["verdict"] for row in kept["rows"]] == ["reproduced", "reproduced", "not compared"]


def test_with_causes_each_table_is_followed_by_what_its_switched_assumptions_do(
    stretto: Stretto, tmp_path: Path
) -> None:
    folder = tmp_path / "results"
    ran = stretto("reproduce", "--all", "--causes", "--workers", 1, "--out", folder)
    assert ran.status == 1
    assert "failed: b-broken, d-measured" in ran.err, "its series broke"
    page = (folder / "results.md").read_text(encoding="utf-8")
    assert "| switched | philly/fifo, jobs |" in page
    assert "| *the paper* | 3 |" in page
    assert "| nothing: as in the table | **3 (1)** |" in page
    assert "| twice the jobs: `jobs=6` | 6 (2) |" in page
    assert "- No switch alone reproduces `philly/fifo, jobs`." in page
    assert "| one | s | ≤ 1 | 2 | 2 | contradicted |" in page, "its table was made"
    assert "- Its series of switched assumptions failed: ZeroDivisionError: nothing can be switched" in page
    kept = json.loads((folder / "causes" / "a-simulated.json").read_text(encoding="utf-8"))
    assert [one["values"][0]["ours"] for one in kept["switched"]] == [3.0, 6.0]
    again = stretto("reproduce", "--page", folder, "--out", tmp_path / "page.md")
    assert again.status == 0
    assert "| twice the jobs: `jobs=6` | 6 (2) |" in (tmp_path / "page.md").read_text(encoding="utf-8")


def test_a_series_alone_is_printed_beside_the_paper(stretto: Stretto, tmp_path: Path) -> None:
    ran = stretto("reproduce", "a-simulated", "--causes", "--workers", 1)
    assert ran.table[0] == ["switched", "philly/fifo, jobs"]
    assert ran.table[1:] == [
        ["the paper", "3"],
        ["nothing: as in the table", "3 (1)"],
        ["twice the jobs: jobs=6", "6 (2)"],
    ]
    assert "philly/fifo, jobs: no switch alone is enough" in ran.err
    folder = tmp_path / "results"
    stretto("reproduce", "--all", "--workers", 1, "--out", folder)
    (folder / "causes").mkdir()
    written = stretto("reproduce", "a-simulated", "--causes", "--workers", 1, "--json").out
    (folder / "causes" / "a-simulated.json").write_text(written)
    page = tmp_path / "page.md"
    stretto("reproduce", "--page", folder, "--out", page)
    assert "| twice the jobs: `jobs=6` | 6 (2) |" in page.read_text(encoding="utf-8")


def test_a_table_at_a_share_says_why_and_what_the_whole_of_it_takes(stretto: Stretto, tmp_path: Path) -> None:
    folder = tmp_path / "results"
    folder.mkdir()
    of_share = stretto("reproduce", "d-measured", "--scale", 0.01, "--json").json
    (folder / "d-measured.json").write_text(json.dumps(of_share | {"simulated_s": 90.0, "processor_s": 36.0}))
    page = tmp_path / "page.md"
    stretto("reproduce", "--page", folder, "--out", page)
    text = page.read_text(encoding="utf-8")
    assert "Not made whole: it would take a week." in text
    assert "This share took 36 s of a core, so all of it takes 60 min or more, and 30 min on 2." in text
    (folder / "d-measured.json").write_text(json.dumps(of_share | {"scale": 1.0, "processor_s": 7_200.0}))
    stretto("reproduce", "--page", folder, "--out", page)
    assert "It takes 60 min on 2 cores, more than half an hour." in page.read_text(encoding="utf-8")


def test_each_table_that_was_made_is_drawn_on_a_page_of_its_own(stretto: Stretto, tmp_path: Path) -> None:
    stretto("reproduce", "--all", "--workers", 1, "--out", tmp_path / "results")
    pages = {page.stem: page.read_text(encoding="utf-8") for page in (tmp_path / "results").glob("*.html")}
    assert sorted(pages) == ["a-simulated", "d-measured"]
    assert all("<svg" in page for page in pages.values())
    assert "D (X 2020), table 1" in pages["d-measured"]


def test_the_same_command_goes_on_with_what_was_simulated_before(stretto: Stretto, tmp_path: Path) -> None:
    for _ in range(2):
        ran = stretto("reproduce", "--all", "--workers", 1, "--out", tmp_path / "results")
    assert "2 simulations, all of them done before" in ran.err
    kept = json.loads((tmp_path / "results" / "a-simulated.json").read_text(encoding="utf-8"))
    assert (kept["simulations"], kept["kept"]) == (2, 2)


def test_a_page_is_made_of_tables_that_earlier_commands_left(stretto: Stretto, tmp_path: Path) -> None:
    folder, page = tmp_path / "results", tmp_path / "page.md"
    stretto("reproduce", "--all", "--workers", 1, "--out", folder)
    (folder / "d-measured.json").write_text(stretto("reproduce", "d-measured", "--scale", 0.5, "--json").out)
    ran = stretto("reproduce", "--page", folder, "--out", page)
    assert ran.status == 0
    assert ran.err.splitlines()[-1] == f"2 of 4 tables; page: {page}"
    lines = page.read_text(encoding="utf-8").splitlines()
    of_all = (folder / "results.md").read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.startswith(("| philly/", "| one |"))]
    assert rows == [line for line in of_all if line in rows]
    assert len(rows) == 4
    assert any(line.endswith("at a scale of 0.5: this share of each workload.") for line in lines)
    assert any("| (contradicted) |" in line for line in lines)
    assert "| 3 | 2 | 2 | 0 | 0 | 0 | 0 | 1 |" in lines, "only whole tables are counted"
    assert (
        "| [b-broken](#b-broken) | B (X 2020), table 1 | not made |  |  |  |  |  |  |  |  |  |  |  |" in lines
    )


@pytest.mark.notebook
def test_figures_are_drawn_of_tables_that_earlier_commands_left(stretto: Stretto, tmp_path: Path) -> None:
    folder, page, drawn = tmp_path / "results", tmp_path / "page.md", tmp_path / "drawn"
    stretto("reproduce", "--all", "--workers", 1, "--out", folder)
    ran = stretto("reproduce", "--page", folder, "--out", page, "--figures", drawn)
    assert ran.status == 0
    assert ran.err.splitlines()[-1] == f"figures: {drawn}"
    assert sorted(each.name for each in drawn.iterdir()) == ["a-simulated", "d-measured"]
    for name in ("figures.csv", "points.csv", "table.csv"):
        assert (drawn / "a-simulated" / name).exists()
    assert list((drawn / "a-simulated").glob("*.svg"))


KILLED = """
import sys
from tests.cli import test_reproduce_all as tables
from stretto.experiments import published
from stretto.cli.app import main

published.EXPERIMENTS = {entry.name: entry for entry in tables.several()}
main(sys.argv[1:])
"""


@pytest.mark.processes
@pytest.mark.slow
def test_a_killed_command_goes_on_and_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    """The process is killed without a word, again and again, at moments that lie anywhere in its work."""
    words = ["reproduce", "--all", "--workers", "1", "--out", str(tmp_path / "results")]
    command = [sys.executable, "-c", KILLED, *words]
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    root = Path(__file__).parents[2]
    finished = tmp_path / "cache" / "stretto" / "finished"
    kills = 0
    for kept in (1, 4):  # of six simulations, in two tables
        process = subprocess.Popen(command, cwd=root, env=environment, stderr=subprocess.DEVNULL)
        while len(list(finished.glob("*.npz"))) < kept and process.poll() is None:
            time.sleep(0.01)
        kills += process.poll() is None
        process.kill()
        process.wait()
        for path in (tmp_path / "results").glob("*.json"):
            json.loads(path.read_text(encoding="utf-8"))
    assert kills == 2
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=True)
    tables = {path.stem: json.loads(path.read_text()) for path in (tmp_path / "results").glob("*.json")}
    assert sorted(tables) == ["a-first", "b-second"], done.stderr
    assert sum(table["kept"] for table in tables.values()) >= 4
    assert [table["simulations"] for table in tables.values()] == [3, 3]
    subprocess.run(
        [*command, "--fresh", "--keep", str(tmp_path / "other")], cwd=root, env=environment, check=True
    )
    for path in (tmp_path / "results").glob("*.json"):
        assert json.loads(path.read_text())["rows"] == tables[path.stem]["rows"]
    assert not list((tmp_path / "results").glob("*.part"))


@pytest.mark.parametrize("damage", ["{", "{}", '{"rows": [{"row": 1}]}', "[]"])
def test_a_damaged_table_is_one_line_and_leaves_the_page_as_it_was(
    damage: str, stretto: Stretto, tmp_path: Path
) -> None:
    (tmp_path / "a-simulated.json").write_text(damage)
    page = tmp_path / "page.md"
    page.write_text("as it was")
    ran = stretto("reproduce", "--page", tmp_path, "--out", page)
    assert ran.status == 2
    assert ran.err.startswith(f"stretto: {tmp_path / 'a-simulated.json'}: expected a table of `reproduce")
    assert ran.err.count("\n") == 1
    assert page.read_text() == "as it was"


@pytest.mark.parametrize(
    ("words", "line"),
    [(["--causes"], "--causes: expected a table whose assumptions are switched, or --all"),
     (["c-absent", "--causes"],
      "--causes c-absent: expected a table with a series of switched assumptions: a-simulated, d-measured"),
     (["a-simulated", "--causes", "--out", "page.html"],
      "--out page.html: expected a table that is made, got --causes"),
     (["a-simulated", "--all"], "expected a table or --all, got both: a-simulated"),
     (["--all", "--out", "page.html"], "--out page.html: expected the name of a folder, with --all"),
     (["--all", "--page", "x"], "expected --all or --page, got both"),
     (["--page", "none"], "--page none: expected a folder with tables of `reproduce --json`"),
     (["--all", "--scale", "0"], "--scale must be above 0 and at most 1, got 0")],
)  # fmt: skip
def test_wrong_words_are_one_line(words: list[str], line: str, stretto: Stretto) -> None:
    ran = stretto("reproduce", *words)
    assert (ran.status, ran.err.strip()) == (2, f"stretto: {line}")
