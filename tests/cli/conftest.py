"""Runs commands in this process, makes small inputs for them, and checks texts that they must print."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from stretto.cli.app import status_of

from .ran import CLUSTER, TRACE, Ran, Stretto

GOLDEN = Path(__file__).parents[1] / "golden"
UPDATE = "STRETTO_UPDATE_GOLDEN"


@pytest.fixture
def stretto(capsys: pytest.CaptureFixture[str]) -> Stretto:
    """A command in this process, as if its output went to a pipe."""

    def run(*words: object) -> Ran:
        capsys.readouterr()
        status = status_of([str(word) for word in words])
        printed = capsys.readouterr()
        return Ran(status, printed.out, printed.err)

    return run


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory, made the current one, with a small cluster file and a small trace."""
    (tmp_path / "tiny.yaml").write_text(CLUSTER)
    (tmp_path / "four.csv").write_text(TRACE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STRETTO_DATA", raising=False)
    return tmp_path


@pytest.fixture
def matches_golden() -> Callable[[str, str], None]:
    """Check a text against the file of that name; with the update switch, write the file instead."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if os.environ.get(UPDATE) == "1":
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"no {path}: look at the text and run again with {UPDATE}=1"
        assert text == path.read_text(encoding="utf-8"), f"if the change is meant, run again with {UPDATE}=1"

    return check
