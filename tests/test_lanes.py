"""Every test is in one part of `make test-all`; the lanes are as the pages say; results are added up."""

import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from itertools import chain, combinations
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace

import pytest
from tests.lanes import (
    BEYOND,
    LANES,
    LOCAL,
    PARTS,
    SMOKE,
    TESTS,
    WHOLE_FILES,
    check_is_found,
    is_of,
    last_line,
    may_hold,
    processes_of,
    why_wrong,
)
from tests.large import row_of
from tests.needs import NEEDS
from tests.smoke import CHOSEN, is_smoke

ROOT = TESTS.parent
MARKERS = sorted(LOCAL | BEYOND | {"slow", "long"})
FILES = sorted(TESTS.rglob("test_*.py"))


def declared() -> dict[str, str]:
    """The markers of this project, with what they mean."""
    options = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]
    lines = options["ini_options"]["markers"]
    return {name: meaning for name, _, meaning in (line.partition(": ") for line in lines)}


def targets() -> dict[str, str]:
    """What `make` runs by name, with its recipe."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    return dict(re.findall(r"^([a-z-]+):.*## .*\n((?:\t.*\n)+)", makefile, re.M))


# ── parts and lanes ───────────────────────────────────────────────────────────────────────────────


def test_whatever_its_markers_a_test_is_in_one_part_of_all_or_long() -> None:
    for markers in map(set, chain.from_iterable(combinations(MARKERS, count) for count in range(5))):
        parts = [part for part in LANES["all"] if is_of(part, markers)]
        assert len(parts) == (0 if "long" in markers else 1), markers


def test_each_lane_holds_the_one_before_it() -> None:
    for markers in map(set, chain.from_iterable(combinations(MARKERS, count) for count in range(5))):
        of_check, of_test, of_build, of_all = (
            any(is_of(part, markers) for part in LANES[lane]) for lane in ("check", "test", "build", "all")
        )
        assert of_check <= of_test <= of_build <= of_all, markers
        assert sum(is_of(part, markers | {SMOKE}) for part in LANES["build"]) <= 1, markers


def test_pure_tests_and_those_on_this_machine_alone_are_of_the_lanes_that_say_so() -> None:
    assert [lane for lane in LANES if any(is_of(part, set()) for part in LANES[lane])] == [*LANES]
    for local in ({"processes", "sqlite", "torch"}, {"slow"}):
        of_lanes = [lane for lane in LANES if any(is_of(part, local) for part in LANES[lane])]
        assert of_lanes == ["test", "build", "all"]
    for beyond in ({"processes", "ray"}, {"data"}, {"sqlite", "slow"}):
        assert [lane for lane in LANES if any(is_of(part, beyond) for part in LANES[lane])] == ["all"]
        smoke = beyond | {SMOKE}
        assert [lane for lane in LANES if any(is_of(part, smoke) for part in LANES[lane])] == ["build", "all"]


def test_what_is_smoke_is_found_by_name_and_cluster() -> None:
    lives = "tests/conformance/test_lives.py::TestLives::"
    begins, repeated = "test_a_worker_goes_from_its_start_to_being_forgotten", "test_a_start_that_is_repeated"
    assert [is_smoke(f"{lives}{begins}[{cluster}]") for cluster in ("slurm", "ray")] == [True, True]
    assert [is_smoke(f"{lives}{repeated}[{cluster}-a::b]") for cluster in ("slurm", "ray")] == [True, False]
    assert is_smoke("tests/service/eventlog/test_log.py::test_it[postgresql-1]")
    assert not is_smoke("tests/service/eventlog/test_log.py::test_it[sqlite-1]")


@pytest.mark.parametrize("place", CHOSEN)
def test_whatever_is_named_as_smoke_exists(place: str) -> None:
    path = ROOT / place
    folders = [path, ROOT / "src/stretto/testing"] if path.is_dir() else []
    files = [file for folder in folders for file in folder.rglob("*.py")] or [path]
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    for pattern in CHOSEN[place]:
        name = pattern.partition(r"\[")[0].removesuffix(".*")
        assert name in text, pattern


def test_every_file_may_have_tests_of_some_part() -> None:
    assert [path for path in FILES if not any(may_hold(part, path) for part in PARTS)] == []


def test_a_marker_that_the_text_of_a_file_does_not_say_ends_the_collection() -> None:
    here = Path(__file__).with_name("test_interfaces.py")
    check_is_found("a pure test", here, set())
    with pytest.raises(pytest.UsageError, match="is of the part beside, which the text of its file does not"):
        check_is_found("one that a fixture has marked", here, {"postgres"})
    for part in WHOLE_FILES:
        with pytest.raises(
            pytest.UsageError, match=f"is of the part {part}, which the pytestmark of its file does"
        ):
            check_is_found(f"one that is {part} among others", here, {part})


def test_large_tests_of_one_cluster_or_file_are_in_a_row() -> None:
    ray = {
        row_of(name)
        for name in (
            "tests/conformance/test_lives.py::TestLives::test_an_id_is_never_used_again[ray]",
            "tests/backends/ray/test_ray.py::test_gpus_in_use_are_shown[all free]",
            "tests/experiments/test_on_ray.py::test_what_is_compared",
        )
    }
    assert ray == {"ray"}
    assert row_of("tests/conformance/test_jobs.py::TestJobs::test_a_job_runs[slurm-two]") == "slurm"
    for alone in ("tests/deploy/test_rights.py", "tests/conformance/test_worlds.py"):
        assert {row_of(f"{alone}::test_it"), row_of(f"{alone}::test_others[ray]")} >= {alone}


def test_what_waits_has_more_processes_than_there_are_processors_and_clusters_are_few() -> None:
    parts = ("pure", "local", "beside", "smoke", "large")
    assert [processes_of(part, 2) for part in parts] == [2, 4, 4, 3, 3]
    assert [processes_of(part, 16) for part in parts] == [8, 8, 8, 4, 4]


# ── markers ───────────────────────────────────────────────────────────────────────────────────────


def test_the_markers_that_decide_are_those_that_are_declared() -> None:
    assert sorted(declared()) == MARKERS
    assert {*NEEDS} < {*MARKERS}


def test_every_declared_marker_is_used() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in TESTS.rglob("*.py"))
    assert [name for name in declared() if f"pytest.mark.{name}" not in text] == []


# ── what the pages, make and the build say ────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("target", "lane"), [("check", "check"), ("test", "test"), ("test-build", "build"), ("test-all", "all")]
)
def test_make_runs_each_lane(target: str, lane: str) -> None:
    assert f"-m tests.lanes {lane} $(ARGS)" in targets()[target]


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_whatever_a_page_makes_is_a_target_with_a_line_of_help(page: str) -> None:
    named = re.findall(r"(?:^|`)make ([a-z-]+)", (ROOT / page).read_text(encoding="utf-8"), re.M)
    shown = re.findall(r"^([a-z-]*):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    assert "test" in named
    assert {*named} <= {*shown}


def test_contributing_names_every_lane_and_every_marker() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert [
        name
        for name in ("check", "test", "test-build", "test-all", "test-long")
        if f"make {name}" not in page
    ] == []
    assert [name for name in declared() if f"`{name}`" not in page] == []


def test_the_build_runs_lint_and_the_lane_that_is_named_for_it() -> None:
    build = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert re.findall(r"^make (\S+)", build, re.M) == [
        ".venv/.installed-dev",
        "sbom",
        "lint",
        '"test-${1:-build}"',
    ]


# ── around pytest ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.processes
@pytest.mark.parametrize(
    ("arguments", "status", "end"),
    [
        pytest.param(["check", "tests/test_lanes.py", "-k", "pages"], 5, "no tests ran in ", id="none found"),
        pytest.param(
            ["test", "tests/test_lanes.py", "-k", "a_sum_is or nothing_is_a_lane"],
            0,
            "2 passed in ",
            id="of two parts",
        ),
        pytest.param(["check", "tests/absent.py"], 4, "no tests ran in ", id="a wrong path"),
    ],
)
def test_the_last_line_is_of_all_parts(arguments: list[str], status: int, end: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.lanes", *arguments, "-p", "no:cacheprovider", "-n", "0"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.splitlines()[-1].startswith(end)) == (status, True), done.stdout


# Indented, so that its markers are not read as those of this file.
SOME = dedent("""
    import pytest
    from pathlib import Path

    pytestmark = [pytest.mark.processes, pytest.mark.alone]

    def first_time(name):
        path = Path(__file__).with_name(name)
        was_there = path.exists()
        path.touch()
        return not was_there

    @pytest.fixture
    def leaves_badly():
        yield
        assert not first_time("teardown"), "left badly"

    def test_passes():
        pass

    def test_of_a_busy_machine():
        assert not first_time("call"), "the machine was busy"

    def test_whose_fixture_leaves_badly(leaves_badly):
        pass
""")
FAULTY = """
def test_is_wrong():
    assert 1 == 2
"""


@pytest.mark.processes
@pytest.mark.parametrize(
    ("arguments", "more", "status", "end"),
    [
        pytest.param(["--again"], "", 0, "3 passed, 2 rerun in ", id="again"),
        pytest.param([], "", 1, "1 failed, 2 passed, 1 error in ", id="once"),
        pytest.param(["--again"], FAULTY, 1, "1 failed, 3 passed, 3 rerun in ", id="again in vain"),
    ],
)
def test_what_failed_may_have_another_try_and_is_named(
    arguments: list[str], more: str, status: int, end: str, tmp_path: Path
) -> None:
    file = tmp_path / "test_some.py"
    file.write_text(SOME + more, encoding="utf-8")
    plugins = ["-ptests.needs", "-ptests.lanes", "-pno:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.lanes", "all", *arguments, *plugins, "-n0", str(file)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    *_, told = done.stdout.partition("── all of the lane all\n")
    assert (done.returncode, told.splitlines()[-1].startswith(end)) == (status, True), done.stdout
    unsteady = [
        line.split("::")[1].split(maxsplit=1)[0] for line in told.splitlines() if line.startswith("RERUN")
    ]
    expected = ["test_of_a_busy_machine", "test_whose_fixture_leaves_badly"] if arguments else []
    assert unsteady == expected
    assert ("the machine was busy" in told, "left badly" in told) == (True, True)
    assert ("assert 1 == 2" in told) == bool(more)


@pytest.mark.processes
def test_nothing_is_a_lane_but_lanes() -> None:
    command = [sys.executable, "-m", "tests.lanes", "most"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr == "lane: got 'most', expected one of check, test, build, all\n"


def test_a_wrong_test_is_told_with_the_last_lines_of_why() -> None:
    report = SimpleNamespace(
        nodeid="tests/a.py::b", when="teardown", longreprtext="first\n" * 20 + "E   last"
    )
    told = why_wrong("error", report).splitlines()
    assert (told[0], told[-1], len(told)) == ("ERROR tests/a.py::b (teardown)", "    E   last", 13)


def test_a_sum_is_in_pytests_words() -> None:
    counts = Counter({"failed": 1, "passed": 5188, "skipped": 3, "error": 0})
    assert last_line(counts, 701.25) == "1 failed, 5188 passed, 3 skipped in 701.25s (0:11:41)"
