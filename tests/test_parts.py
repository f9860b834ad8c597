"""The two parts are all tests, and what both come to is said."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.parts import ALONE, PARTS, TESTS, is_of, last_line


@pytest.mark.parametrize("name", ALONE)
def test_what_runs_alone_is_there(name: str) -> None:
    assert (TESTS / name).exists()


def test_every_file_is_of_exactly_one_part() -> None:
    for path in TESTS.rglob("test_*.py"):
        assert [is_of(part, path) for part in PARTS].count(True) == 1, path
        assert all(is_of(part, above) for part in PARTS if is_of(part, path) for above in folders(path)), path


def folders(path: Path) -> list[Path]:
    return [above for above in path.parents if above.is_relative_to(TESTS)]


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        pytest.param(["tests/test_parts.py", "-k", "is_there and crash"], 0, "1 passed in ", id="all passed"),
        pytest.param(["tests/test_parts.py", "-k", "no_such_test"], 5, "no tests ran in ", id="none found"),
        pytest.param(["tests/absent.py"], 4, "no tests ran in ", id="a wrong path"),
    ],
)
def test_the_last_line_is_of_both_parts(arguments: list[str], status: int, said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.parts", *arguments, "-p", "no:cacheprovider", "-n", "0"],
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.splitlines()[-1].startswith(said)) == (status, True), done.stdout


def test_a_sum_is_in_pytests_words() -> None:
    counts = Counter({"failed": 1, "passed": 5188, "skipped": 3, "error": 0})
    assert last_line(counts, 701.25) == "1 failed, 5188 passed, 3 skipped in 701.25s (0:11:41)"
