"""All tests in two parts: those that bear others beside them, on every processor; then the rest, one by one.

Run as `python -m tests.parts [ARGUMENT...]`, with what pytest takes. Both parts run, whether or not something
fails in the first (unless pytest was asked to stop at a failure), and what both came to is said at the end in
pytest's own words. Where pytest is run without this, all tests run one by one.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent
# Clusters of many processes that must see each other in time, and trainings that fill the machine themselves.
ALONE = (
    "conformance",
    "experiments/test_on_ray.py",
    "service/backends",
    "service/crash",
    "service/end_to_end",
)
PARTS = ("beside", "alone")
OPTION, TALLY = "--part", "--tally"
SAID = ("failed", "passed", "skipped", "xfailed", "xpassed", "error")  # in the order that pytest has
WRONG = ("failed", "error")
STOPS = ("-x", "--exitfirst", "--maxfail", "--pdb")
MOST_PROCESSES = 8  # each imports everything, and has a database server of its own; chosen
NOTHING_FOUND = int(pytest.ExitCode.NO_TESTS_COLLECTED)


# ── within pytest ─────────────────────────────────────────────────────────────────────────────────


def is_alone(path: Path) -> bool:
    """Whether a test file, or all of a folder, is of the second part."""
    return any(path.is_relative_to(TESTS / name) for name in ALONE)


def is_of(part: str, path: Path) -> bool:
    """Whether a file is of a part, or a folder may have files of it."""
    if is_alone(path):
        return part == "alone"
    return part == "beside" or any((TESTS / name).is_relative_to(path) for name in ALONE)


def pytest_addoption(parser: pytest.Parser) -> None:
    """What this module says to pytest."""
    parser.addoption(
        OPTION, choices=PARTS, help="run only the tests that bear others beside them, or the rest"
    )
    parser.addoption(TALLY, metavar="FILE", help="write how many tests passed, failed and so on to FILE")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files of the other part are not even imported."""
    part = config.getoption(OPTION)
    return True if part and not is_of(part, collection_path) else None


def leave_out_others(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Nor are they run where they are named, for which nothing is ignored."""
    if part := config.getoption(OPTION):
        others = [item for item in items if not is_of(part, item.path)]
        items[:] = [item for item in items if is_of(part, item.path)]
        if others:
            config.hook.pytest_deselected(items=others)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Tell whoever runs the parts what this one came to."""
    if path := config.getoption(TALLY):
        stats = terminalreporter.stats
        counts = {kind: len(stats.get(kind, ())) for kind in SAID}
        wrong = [
            f"{kind.upper()} {one.nodeid}" for kind in ("failed", "error") for one in stats.get(kind, ())
        ]
        Path(path).write_text(json.dumps({"counts": counts, "wrong": wrong}), encoding="utf-8")


# ── around it ─────────────────────────────────────────────────────────────────────────────────────


def command_of(part: str, arguments: Sequence[str], tally: Path) -> list[str]:
    """Pytest for one part."""
    command = [sys.executable, "-m", "pytest", OPTION, part, TALLY, str(tally)]
    if part == "beside" and "--pdb" not in arguments:
        processes = min(len(os.sched_getaffinity(0)), MOST_PROCESSES)
        command += ["-n", str(processes), "--dist", "worksteal"]
    return [*command, *arguments]


def last_line(counts: Counter[str], took_s: float) -> str:
    """As pytest says it."""
    said = [f"{counts[kind]} {kind}" for kind in SAID if counts[kind]]
    return f"{', '.join(said) or 'no tests ran'} in {took_s:.2f}s ({timedelta(seconds=int(took_s))})"


def main(arguments: Sequence[str]) -> int:
    """Run both parts; the exit status, as pytest has it."""
    began_s, statuses, counts, wrong = time.monotonic(), [], Counter[str](), []
    # One thread for each process that computes: they share the processors already.
    environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    with tempfile.TemporaryDirectory() as folder:
        for part in PARTS:
            tally = Path(folder) / part
            print(f"── tests that run {'beside each other' if part == 'beside' else 'alone'}", flush=True)
            command = command_of(part, arguments, tally)
            done = subprocess.run(command, env=environment if part == "beside" else None, check=False)
            statuses.append(done.returncode)
            if tally.exists():
                told = json.loads(tally.read_text(encoding="utf-8"))
                counts.update(told["counts"])
                wrong += told["wrong"]
            failed = done.returncode not in (0, NOTHING_FOUND)
            if failed and (done.returncode != 1 or any(one.startswith(STOPS) for one in arguments)):
                break  # interrupted, or wrong arguments, or enough is known
    print("── both parts", *wrong, last_line(counts, time.monotonic() - began_s), sep="\n")
    found = [status for status in statuses if status != NOTHING_FOUND]
    return max(found, key=abs, default=NOTHING_FOUND)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(int(pytest.ExitCode.INTERRUPTED))
