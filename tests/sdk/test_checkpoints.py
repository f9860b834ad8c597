"""Checkpoints are complete or not there."""

import errno
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from stretto.sdk.checkpoints import checkpoints, read_newest, write_checkpoint

pytestmark = pytest.mark.torch


def newest_step(folder: Path) -> Any:
    found = read_newest(folder)
    return found and found["step"]


def test_the_newest_comes_back_and_one_more_is_kept(tmp_path: Path) -> None:
    assert read_newest(tmp_path / "none") is None
    for step in (9, 10, 200):
        write_checkpoint(tmp_path, step, {"step": step, "weights": torch.ones(3) * step})
    assert newest_step(tmp_path) == 200
    assert [path.name for path in checkpoints(tmp_path)] == ["step-000000000200.pt", "step-000000000010.pt"]


class Killed(BaseException):
    """As if the process had ended there."""


def test_a_crash_between_writing_and_renaming_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint(tmp_path, 1, {"step": 1})

    def crash(self: Path, target: Path) -> Path:
        raise Killed

    monkeypatch.setattr(Path, "replace", crash)
    monkeypatch.setattr(Path, "unlink", lambda self, missing_ok=False: None)  # nor does it clear up
    with pytest.raises(Killed):
        write_checkpoint(tmp_path, 2, {"step": 2})
    monkeypatch.undo()
    assert newest_step(tmp_path) == 1
    assert list(tmp_path.glob("*.unfinished"))
    write_checkpoint(tmp_path, 3, {"step": 3})
    assert not list(tmp_path.glob("*.unfinished"))


@pytest.mark.parametrize("where", ["fsync", "save"])
def test_a_full_disk_is_an_oserror_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    write_checkpoint(tmp_path, 1, {"step": 1})

    def full(*_: Any) -> None:
        if where == "save":
            raise RuntimeError("unexpected pos 64 vs 0")  # as torch's writer says it
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(*((os, "fsync") if where == "fsync" else (torch, "save")), full)
    with pytest.raises(OSError, match=r"space|pos"):
        write_checkpoint(tmp_path, 2, {"step": 2})
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000000001.pt"]


def test_a_damaged_file_gives_way_to_the_one_before_but_never_to_nothing(tmp_path: Path) -> None:
    for step in (1, 2):
        write_checkpoint(tmp_path, step, {"step": step})
    newest, before = checkpoints(tmp_path)
    newest.write_bytes(newest.read_bytes()[:50])
    assert newest_step(tmp_path) == 1
    before.write_bytes(b"")
    with pytest.raises(OSError, match="none of the 2 checkpoints"):
        read_newest(tmp_path)


class Odd:
    """What a scheduler of somebody's own may hold, or what runs code as it is unpickled."""

    def __reduce__(self) -> Any:
        return Path.touch, (Path(os.environ["ODD"]),)


@pytest.mark.parametrize(
    ("mode", "runs"),
    [
        pytest.param(0o700, True, id="taken from a directory of ours"),
        pytest.param(0o775, True, id="and of ours and our group's"),
        pytest.param(0o777, False, id="not from where everybody may have put it"),
    ],
)
def test_objects_of_a_checkpoint_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, runs: bool
) -> None:
    folder, trace = tmp_path / "checkpoints", tmp_path / "ran"
    monkeypatch.setenv("ODD", str(trace))
    write_checkpoint(folder, 1, {"step": 1, "odd": Odd()})
    folder.chmod(mode)
    if runs:
        assert newest_step(folder) == 1
    else:
        with pytest.raises(OSError, match="none of the 1 checkpoints"):
            read_newest(folder)
    assert trace.exists() is runs


def test_plain_values_and_tensors_are_read_wherever_they_lie(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    write_checkpoint(folder, 1, {"step": 1, "counts": Counter("aab"), "random": (1, (2, None))})
    folder.chmod(0o777)
    assert newest_step(folder) == 1
