"""The file that images are built from: rules that hadolint has for such files, and pinned packages."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
FILE = ROOT / "deploy" / "Containerfile"
PINNED = re.compile(r"(?P<name>[\w.-]+)(?:\[[\w,-]+\])?==(?P<version>\S+) \\")
EXTRAS = ("serve", "oidc", "postgres", "kubernetes")
LINTER = Path(sys.executable).with_name("hadolint")


@pytest.mark.skipif(not LINTER.exists(), reason="hadolint has no build for this machine")
def test_the_containerfile_is_clean_by_hadolint(tmp_path: Path) -> None:
    clean = subprocess.run([LINTER, FILE], capture_output=True, text=True, check=False)
    assert (clean.returncode, clean.stdout) == (0, "")
    (tmp_path / "Containerfile").write_text("FROM debian\nRUN apt-get install curl\n")
    bad = subprocess.run([LINTER, tmp_path / "Containerfile"], capture_output=True, text=True, check=False)
    assert bad.returncode != 0
    assert "DL3008" in bad.stdout


def test_all_packages_of_an_image_are_pinned_with_hashes_within_their_ranges() -> None:
    text = (ROOT / "deploy" / "requirements.txt").read_text()
    entries = [part for part in re.split(r"\n(?=\S)", text) if not part.startswith("#")]
    pins = {}
    for entry in entries:
        pinned = PINNED.match(entry)
        assert pinned is not None, entry.splitlines()[0]
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), pinned["name"]
        pins[canonicalize_name(pinned["name"])] = pinned["version"]
    stated = tomllib.loads((ROOT / "pyproject.toml").read_text())
    asked = [*stated["project"]["dependencies"], *stated["dependency-groups"]["image"]]
    for extra in EXTRAS:
        asked += stated["project"]["optional-dependencies"][extra]
    assert len(asked) > 20
    for requirement in map(Requirement, asked):
        if requirement.marker is None or requirement.marker.evaluate({"python_version": "3.13"}):
            version = pins.get(canonicalize_name(requirement.name), "")
            assert version, f"{requirement.name}: not pinned; see make pins"
            assert requirement.specifier.contains(version), f"{requirement}: {version} is pinned"
