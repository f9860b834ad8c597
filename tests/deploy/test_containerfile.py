"""The file that images are built from keeps the rules that hadolint has for such files."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

FILE = Path(__file__).parents[2] / "deploy" / "Containerfile"
LINTER = Path(sys.executable).with_name("hadolint")


@pytest.mark.skipif(not LINTER.exists(), reason="hadolint has no build for this machine")
def test_the_containerfile_is_clean_by_hadolint(tmp_path: Path) -> None:
    clean = subprocess.run([LINTER, FILE], capture_output=True, text=True, check=False)
    assert (clean.returncode, clean.stdout) == (0, "")
    (tmp_path / "Containerfile").write_text("FROM debian\nRUN apt-get install curl\n")
    bad = subprocess.run([LINTER, tmp_path / "Containerfile"], capture_output=True, text=True, check=False)
    assert bad.returncode != 0
    assert "DL3008" in bad.stdout
