"""What `make` shows while it installs, with a stand-in for pip that says what pip says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

INSTALL = Path(__file__).parents[1] / "tools" / "install.py"
PIP = """\
import sys
print("Collecting torch==2.13.0")
print("WARNING: Location 'somewhere' is ignored", file=sys.stderr)
print("  Downloading https://example.invalid/torch-2.13.0-cp311-none-linux.whl (181.0 MB)")
print("Downloading numpy-2.4.6-cp311.whl (16.9 MB)")
print("  Downloading typer-0.29.2-py3-none-any.whl (121 kB)")
print("Installing collected packages: numpy, torch")
print("ERROR: no matching distribution" if "wrong" in sys.argv else "Successfully installed")
sys.exit(3 if "wrong" in sys.argv else 0)
"""


@pytest.mark.parametrize("word", ["torch==2.13.0", "wrong"])
def test_an_installation_shows_sizes_and_keeps_warnings_for_the_log(word: str, tmp_path: Path) -> None:
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip" / "__init__.py").touch()
    (tmp_path / "pip" / "__main__.py").write_text(PIP)
    log = tmp_path / "install.log"
    done = subprocess.run(
        [sys.executable, INSTALL, log, word],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        check=False,
    )
    lines = done.stdout.splitlines()
    assert lines[:2] == [
        "  downloading torch (181.0 MB); 1 packages, 181 MB",
        "  unpacking what was downloaded (198 MB)",
    ]
    assert "WARNING" in log.read_text()
    if word == "wrong":
        assert done.returncode == 3
        assert "ERROR: no matching distribution" in done.stderr
        assert done.stderr.splitlines()[-1] == f"pip failed with status 3; all that it said is in {log}"
    else:
        assert (done.returncode, done.stderr) == (0, "")
        assert lines[2].startswith("  installed in ")
        assert lines[2].endswith(", 198 MB downloaded")
