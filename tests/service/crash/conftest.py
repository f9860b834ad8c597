"""Where crashes happen: a small disk, and a database server; and what they came to, as a table at the end."""

import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ..eventlog.conftest import database, server

__all__ = ["database", "server"]

Tell = Callable[[Counter[str], str], None]
Row = tuple[str, Counter[str], str]  # test, blows that fell by kind, verdict
ROWS = pytest.StashKey[list[Row]]()


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> Iterator[Tell]:
    """Takes what fell, and the verdict in words; a test that says nothing has failed."""
    told: list[tuple[Counter[str], str]] = []

    def tell(fell: Counter[str], verdict: str) -> None:
        told.append((fell, verdict))

    yield tell
    if request.node.get_closest_marker("long") is None:
        return
    rows = request.config.stash.setdefault(ROWS, [])
    rows += [(request.node.name, *one) for one in told or [(Counter[str](), "FAILED")]]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The table, where crashes were tested at length."""
    rows = config.stash.get(ROWS, [])
    if not rows:
        return
    every = sum((fell for _, fell, _ in rows), Counter[str]())
    kinds = sorted(every)
    terminalreporter.section("crashes")
    for test, fell, verdict in rows:
        terminalreporter.line(test)
        terminalreporter.line("  " + (", ".join(f"{kind} {fell[kind]}" for kind in sorted(fell)) or "-"))
        terminalreporter.line(f"  {verdict}")
    words = ", ".join(f"{kind} {every[kind]}" for kind in kinds)
    terminalreporter.line(f"in all {every.total()} blows: {words}")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB; skips where this user may not mount one."""
    place = tmp_path / "small"
    mount_small(place, "1m")
    try:
        yield place
    finally:
        unmount(place)


def mount_small(place: Path, size: str) -> None:
    """A file system in memory; skips where this user may not mount one."""
    place.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", str(place)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"cannot mount a small disk: {done.stderr.strip()}")


def unmount(place: Path) -> None:
    """Even while somebody uses it."""
    subprocess.run(["umount", "-l", str(place)], check=True)
