"""The lanes, check within test within build within all, and their parts; each part is one run of pytest.

Run as `python -m tests.lanes LANE [ARGUMENT...]`, with what pytest takes. All parts of a lane run, whether or
not something fails in one (unless pytest was asked to stop at a failure). The last line counts all of them in
pytest's own words. Where pytest is run without this, all tests run one by one.

With `--again`, tests on processes and servers that failed run once more, one by one, where they are few. The
last lines name each test that passed only then, with why it failed before.

A part is chosen by the markers of a test (see `tests/needs.py`). Those of a whole file, its `pytestmark`, are
read before it is imported. So no part imports files that have nothing for it; their packages may be missing.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import pytest
from tests.needs import PACKAGES
from tests.smoke import is_smoke, may_hold_smoke

TESTS = Path(__file__).parent
# What a test may need of a machine on which only Stretto is installed, and what more there is (or takes).
LOCAL = frozenset({"processes", "sockets", "sqlite", "torch", "parquet", "notebook"})
BEYOND = frozenset({"postgres", "ray", "slurm", "kubernetes", "data", "large", "alone", "heavy"})
PARTS = {
    "pure": "pure tests, beside each other",
    "local": "tests on processes, SQLite and PyTorch, and slow pure ones, beside each other",
    "beside": "all other tests that run beside each other",
    "smoke": "some tests on clusters, services and trainings, those of one file or cluster in a row",
    "large": "tests on clusters, services and trainings, those of one file or cluster in a row",
    "alone": "tests that run one by one",
}
IN_ROWS = ("smoke", "large")
WHOLE_FILES = ("alone", "large")  # parts to which whole files belong; who says both is of the first
LANES = {
    "check": ("pure",),
    "test": ("pure", "local"),
    "build": ("pure", "local", "smoke"),
    "all": ("pure", "beside", "large", "alone"),
}
ADDED = {
    "check": ("--hypothesis-profile=check",),
    "test": ("--hypothesis-profile=test",),
    "build": ("--hypothesis-profile=build", "--durations=40", "--durations-min=2"),
    "all": ("--durations=40", "--durations-min=2"),
}
FILE_MARKERS = re.compile(r"^pytestmark = (?:\[\n(?:.*\n)*?\]|.*)", re.M)
MARKER = re.compile(r"pytest\.mark\.(\w+)")
SMOKE = "smoke"
OPTION, TALLY = "--part", "--tally"
COUNTED = ("failed", "passed", "skipped", "xfailed", "xpassed", "error", "rerun")  # in the order of pytest
AGAIN = "--again"
HAVE_ANOTHER_TRY = ("local", "beside", "smoke", "large", "alone")  # parts; what is pure fails for a reason
MOST_AGAIN = 10  # where more tests have failed, it is no accident; chosen
WHOLE_OPTION = re.compile(r"--[\w-]+=.*|-[a-zA-Z]\S+")  # with its value, if it has one, in the same word
STOPS = ("-x", "--exitfirst", "--maxfail", "--pdb")
MOST_LINES = 12  # of why a test is wrong, at the end of all; chosen
MOST_PROCESSES = 8  # each imports everything, and has a database server of its own; chosen
MOST_LARGE = 4  # each may have a whole cluster; chosen
NO_TESTS = int(pytest.ExitCode.NO_TESTS_COLLECTED)


# ── which tests ───────────────────────────────────────────────────────────────────────────────────


def level(markers: Set[str]) -> int:
    """The first lane that runs a test: 0 check, 1 test, 2 all; what is slow runs one lane later."""
    if markers & BEYOND:
        return 2
    return min(2, bool(markers & LOCAL) + ("slow" in markers))


def of_whole_files(markers: Set[str]) -> str:
    """The part to which a test belongs with its whole file; "" if none."""
    return next((part for part in WHOLE_FILES if part in markers), "")


def is_of(part: str, markers: Set[str]) -> bool:
    """Whether a test with these markers, and SMOKE where it is one, is of a part."""
    if "long" in markers:
        return False  # of none: `make test-long` runs it
    if part == SMOKE:
        return SMOKE in markers and "alone" not in markers and ("large" in markers or level(markers) > 1)
    if whole := of_whole_files(markers):
        return part == whole
    needs = level(markers)
    return {"pure": needs == 0, "local": needs == 1, "beside": needs > 0}.get(part, False)


@cache
def may_hold(part: str, path: Path) -> bool:
    """Whether a test file may have tests of a part, by its text: markers are written where tests are."""
    text = path.read_text(encoding="utf-8")
    if part == SMOKE:
        return may_hold_smoke(path.relative_to(TESTS.parent).as_posix())
    line = FILE_MARKERS.search(text)
    of_all = frozenset(MARKER.findall(line[0]) if line else ())
    if whole := of_whole_files(of_all):
        return part == whole
    if part in WHOLE_FILES:
        return False
    if part == "pure":
        return level(of_all) == 0
    is_marked = level(frozenset(MARKER.findall(text))) > 0
    return is_marked and (part == "beside" or level(of_all) <= 1)


def may_have_tests(part: str, path: Path) -> bool:
    """Whether a file, or one in a folder, may have tests of a part."""
    if path.is_dir():
        return any(may_hold(part, file) for file in path.rglob("test_*.py"))
    return not path.name.startswith("test_") or may_hold(part, path)


# ── within pytest ─────────────────────────────────────────────────────────────────────────────────


def pytest_addoption(parser: pytest.Parser) -> None:
    """What this module says to pytest."""
    parser.addoption(OPTION, choices=tuple(PARTS), help="run only the tests of this part")
    parser.addoption(TALLY, metavar="FILE", help="write how many tests passed, failed and so on to FILE")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files that have nothing for the part are not even imported."""
    part = config.getoption(OPTION)
    if not part or not collection_path.is_relative_to(TESTS):
        return None
    return None if may_have_tests(part, collection_path) else True


@pytest.hookimpl(trylast=True)  # once other plugins have given their markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Only the part that was asked for, whatever files were named."""
    part = config.getoption(OPTION)
    if not part:
        return
    chosen: list[pytest.Item] = []
    others: list[pytest.Item] = []
    for item in items:
        markers = {marker.name for marker in item.iter_markers()}
        markers |= {SMOKE} if is_smoke(item.nodeid) else set()
        (chosen if is_of(part, markers) else others).append(item)
        check_is_found(item.nodeid, item.path, markers)
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = chosen


def check_is_found(name: str, path: Path, markers: Set[str]) -> None:
    """No test may be left out of every part because its markers are not in the text of its file."""
    for part in LANES["all"]:
        if is_of(part, markers) and not may_hold(part, path):
            where = "pytestmark" if part in WHOLE_FILES else "text"
            stop(f"{name} is of the part {part}, which the {where} of its file does not say")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Pure tests must run where the packages of the others are not installed."""
    imported = sorted(package for package in PACKAGES if package in sys.modules)
    if session.config.getoption(OPTION) == "pure" and imported:
        stop(f"a file of pure tests, or a conftest of theirs, imports {', '.join(imported)}")


def stop(why: str) -> NoReturn:
    """End the collection; the process that collects may be a worker, whose errors are not shown in words."""
    print(why, file=sys.__stderr__, flush=True)
    raise pytest.UsageError(why)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Write for the lane what its part came to."""
    if path := config.getoption(TALLY):
        stats = terminalreporter.stats
        counts = {kind: len(stats.get(kind, ())) for kind in COUNTED}
        wrong = [
            {"test": report.nodeid, "kind": kind, "when": report.when, "why": why_wrong(kind, report)}
            for kind in ("failed", "error")
            for report in stats.get(kind, ())
        ]
        Path(path).write_text(json.dumps({"counts": counts, "wrong": wrong}), encoding="utf-8")


def why_wrong(kind: str, report: Any) -> str:
    """A test that is wrong, and the last lines of why: of a long run only the end may be kept."""
    last = str(report.longreprtext).splitlines()[-MOST_LINES:]
    return "\n".join(
        [f"{kind.upper()} {report.nodeid} ({report.when})", *(f"    {line[:200]}" for line in last)]
    )


# ── around it ─────────────────────────────────────────────────────────────────────────────────────


def command_of(lane: str, part: str, arguments: Sequence[str], tally: Path) -> list[str]:
    """Pytest for one part; what its user says goes before what the lane adds."""
    command = [sys.executable, "-m", "pytest", OPTION, part, TALLY, str(tally), *ADDED.get(lane, ())]
    if part != "alone" and "--pdb" not in arguments:
        distribution = "loadscope" if part in IN_ROWS else "worksteal"  # by rows: see tests/large.py
        command += ["-n", str(processes_of(part, len(os.sched_getaffinity(0)))), "--dist", distribution]
    return [*command, *arguments]


def processes_of(part: str, processors: int) -> int:
    """How many processes run the tests of a part.

    Tests on processes and sockets wait most of their time: two beside each other keep a processor busy. Large
    tests may have a whole cluster each: one more than there are processors does, and at most `MOST_LARGE`.
    """
    if part in IN_ROWS:
        return min(processors + 1, MOST_LARGE)
    return min(processors if part == "pure" else 2 * processors, MOST_PROCESSES)


def last_line(counts: Counter[str], took_s: float) -> str:
    """As pytest says it."""
    said = [f"{counts[kind]} {kind}" for kind in COUNTED if counts[kind]]
    return f"{', '.join(said) or 'no tests ran'} in {took_s:.2f}s ({timedelta(seconds=int(took_s))})"


@dataclass
class Outcome:
    """What a part came to."""

    status: int  # as pytest has it
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[dict[str, str]] = field(default_factory=list)  # test, kind, when, why
    unsteady: list[str] = field(default_factory=list)  # what failed, and passed when it was run again

    @property
    def failures(self) -> list[str]:
        """The tests that are wrong, each once."""
        return list(dict.fromkeys(each["test"] for each in self.wrong))


def run_part(command: Sequence[str], env: Mapping[str, str], tally: Path) -> Outcome:
    """Run pytest once."""
    done = subprocess.run(command, env=env, check=False)
    if not tally.exists():
        return Outcome(done.returncode)
    result = json.loads(tally.read_text(encoding="utf-8"))
    return Outcome(done.returncode, Counter(result["counts"]), result["wrong"])


def corrected(first: Outcome, second: Outcome) -> Outcome:
    """A part whose failures were run again, with what they came to then."""
    counts = first.counts + second.counts
    for each in first.wrong:
        counts[each["kind"]] -= 1
    failed = {each["test"] for each in first.wrong if each["kind"] == "failed"}
    of_teardown = {each["test"] for each in first.wrong if each["when"] == "teardown"}
    counts["passed"] -= len(of_teardown - failed)  # they are counted as passed, too
    counts["rerun"] = len(first.failures)
    still = {*second.failures}
    unsteady = [
        f"RERUN {each['test']} passed when it was run again; at first it did not:\n{each['why']}"
        for each in first.wrong
        if each["test"] not in still
    ]
    return Outcome(second.status, counts, second.wrong, unsteady)


def run(lane: str, arguments: Sequence[str]) -> int:
    """Run the parts of a lane; the exit status, as pytest has it."""
    began_s, outcomes = time.monotonic(), list[Outcome]()
    may_try_again, arguments = AGAIN in arguments, [word for word in arguments if word != AGAIN]
    # Tests start hundreds of processes, each of which would compile what it imports where none may keep it.
    alone = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    # One thread for each process that computes beside others: they share the processors already.
    beside = {"OMP_NUM_THREADS": "1", **alone}
    with tempfile.TemporaryDirectory() as folder:
        for part in LANES[lane]:
            tally = Path(folder) / part
            print(f"── {PARTS[part]}", flush=True)
            env = alone if part == "alone" else beside
            outcome = run_part(command_of(lane, part, arguments, tally), env, tally)
            failures = outcome.failures if may_try_again and part in HAVE_ANOTHER_TRY else []
            if outcome.status == 1 and 0 < len(failures) <= MOST_AGAIN:
                print("── once more, one by one, what failed", flush=True)
                options = [word for word in arguments if WHOLE_OPTION.fullmatch(word)]
                tally = Path(folder) / f"{part} again"
                command = [sys.executable, "-m", "pytest", OPTION, part, TALLY, str(tally), *options]
                second = run_part([*command, "-n", "0", *failures], env, tally)
                outcome = corrected(outcome, second) if second.status in (0, 1) else outcome
            outcomes.append(outcome)
            failed = outcome.status not in (0, NO_TESTS)
            if failed and (outcome.status != 1 or any(word.startswith(STOPS) for word in arguments)):
                break  # interrupted, or wrong arguments, or enough is known
    print(f"── all of the lane {lane}")
    for outcome in outcomes:
        for line in (*outcome.unsteady, *(each["why"] for each in outcome.wrong)):
            print(line)
    counts = sum((outcome.counts for outcome in outcomes), Counter[str]())
    print(last_line(counts, time.monotonic() - began_s))
    statuses = [outcome.status for outcome in outcomes if outcome.status != NO_TESTS]
    return max(statuses, key=abs, default=NO_TESTS)


def main(words: Sequence[str]) -> int:
    """Run the lane that the first word names."""
    if not words or words[0] not in LANES:
        named = repr(words[0]) if words else "none"
        print(f"lane: got {named}, expected one of {', '.join(LANES)}", file=sys.stderr)
        return int(pytest.ExitCode.USAGE_ERROR)
    return run(words[0], words[1:])


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(int(pytest.ExitCode.INTERRUPTED))
