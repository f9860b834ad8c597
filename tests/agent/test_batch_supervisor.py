"""The directory that workers of a batch job share on a node goes with the last of them, or a little later."""

import os
import shutil
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stretto.agent.batch_supervisor import GONE, LOCK, BatchSupervisor, leave, sweep, take_part

NOBODY = 65534


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where a node keeps the directories of its user."""
    folder = tmp_path / "place"
    folder.mkdir()
    return folder


def test_how_a_worker_ended_is_known_before_a_large_directory_is_deleted(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "start.json").write_text("{}")
    kept = BatchSupervisor(run)
    kept.notes, kept.exit = {"started_s": 1.0}, {"status": 3, "signal": None}
    kept.scratch, kept.lock = place / "7.1", take_part(place / "7.1")
    (kept.scratch / "copy").write_text("large")
    delete, seen = shutil.rmtree, list[tuple[bool, list[str]]]()

    def deleting(path: Path, **options: Any) -> None:
        seen.append(((run / "ended.json").exists(), [each.name for each in place.iterdir()]))
        delete(path, **options)

    monkeypatch.setattr(shutil, "rmtree", deleting)
    kept.write_ending()
    assert seen == [(True, [f"{GONE}{os.getpid()}-7.1"])]
    assert not [*place.iterdir()]


def as_another_user(act: Callable[[], object]) -> None:
    """Do it in a child that is not root: to root nothing is read-only."""
    with warnings.catch_warnings(action="ignore"):  # newer Pythons warn of threads, which pytest's runner has
        child = os.fork()
    if not child:
        status = 1
        try:
            if not os.getuid():
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            act()
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.processes
def test_directories_that_a_job_has_made_read_only_are_removed_too() -> None:
    place = Path(tempfile.mkdtemp())  # a test's own directory is closed to others
    place.chmod(0o777)
    folder = place / f"{GONE}1-7.1"

    def leave_and_sweep() -> None:
        for deep in (folder / "closed" / "deep", folder / "cache" / "module@v1"):
            deep.mkdir(parents=True)
            (deep / "file").write_text("x")
        (folder / "link").symlink_to(place)
        for name, mode in (("cache/module@v1", 0o555), ("cache", 0o555), ("closed/deep", 0), ("closed", 0)):
            (folder / name).chmod(mode)
        sweep(place)

    try:
        as_another_user(leave_and_sweep)
        assert [*place.iterdir()] == []
        assert place.stat().st_mode & 0o777 == 0o777, "what a link leads to is left alone"
    finally:
        shutil.rmtree(place)


def test_the_next_worker_removes_what_a_deletion_has_left_that_was_cut_short(place: Path) -> None:
    cut_short, never_begun = place / f"{GONE}1-7.1", place / "8.1"
    (cut_short / "copy").mkdir(parents=True)  # without the lock, which was deleted before
    (cut_short / "copy" / "file").write_text("")
    never_begun.mkdir()
    sweep(place)
    assert not [*place.iterdir()]


def test_the_next_worker_removes_what_a_worker_has_left_that_was_killed(place: Path) -> None:
    os.close(take_part(place / "7.1"))
    (place / "7.1" / "copy").mkdir()
    sweep(place)
    assert not [*place.iterdir()]


def test_the_next_worker_leaves_directories_alone_that_others_hold(place: Path) -> None:
    lock = take_part(place / "7.1")
    (place / "other").mkdir()
    (place / "other" / "file").write_text("")
    sweep(place)
    assert sorted(str(each.relative_to(place)) for each in place.rglob("*")) == [
        "7.1",
        f"7.1/{LOCK}",
        "other",
        "other/file",
    ]
    second = take_part(place / "7.1")
    assert leave(place / "7.1", lock) is None, "another one shares it"
    assert leave(place / "7.1", second) == place / f"{GONE}{os.getpid()}-7.1"


def test_a_directory_that_is_swept_while_it_is_made_is_made_again(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, swept = Path.mkdir, list[Path]()

    def made_and_swept(folder: Path, *arguments: Any, **options: Any) -> None:
        make(folder, *arguments, **options)
        if not swept:
            sweep(place)
            assert not folder.exists()
            swept.append(folder)

    monkeypatch.setattr(Path, "mkdir", made_and_swept)
    os.close(take_part(place / "7.1"))
    assert swept
    assert (place / "7.1" / LOCK).exists()
