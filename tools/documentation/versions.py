"""The site of one version beside those of others: `make docs-version`.

Each version has a folder of its own. Zensical's selector reads in `versions.json` which there are, a file
of the form that mike writes. mike itself builds by MkDocs and commits to a branch. Here folders count.
"""

import json
import os
import shutil
from pathlib import Path

from packaging.version import InvalidVersion, Version

from stretto.model import InputError

LATEST = "latest"  # the name under which the newest release is found
THEME = Path(__file__).parent / "theme"
TO_THE_LATEST = f"""<!doctype html>
<meta charset="utf-8">
<title>Stretto</title>
<link rel="icon" href="data:,">
<meta http-equiv="refresh" content="0; url={LATEST}/index.html">
<a href="{LATEST}/index.html">Stretto's documentation</a>
"""


def write_settings(file: Path, site: Path, docs: Path, usual: Path) -> None:
    """The usual settings of the generator, and with them a selector and a note on old versions."""
    version = {
        "INHERIT": _seen_from(file, usual),
        "docs_dir": _seen_from(file, docs),
        "site_dir": _seen_from(file, site),
        "theme": {"custom_dir": _seen_from(file, THEME)},
        "extra": {"version": {"provider": "mike", "default": LATEST}},
    }
    file.write_text(json.dumps(version), encoding="utf-8")  # JSON is YAML, too


def _seen_from(file: Path, path: Path) -> str:
    return os.path.relpath(path, file.parent)  # the generator fails where paths are absolute


def read_version(text: str) -> Version:
    """A version as packages have it; InputError where it is none."""
    try:
        return Version(text)
    except InvalidVersion:
        raise InputError(f"VERSION must be a version such as 0.1.0, got {text!r}") from None


def publish(site: Path, version: str, into: Path) -> None:
    """Put a site that was built into its version's folder, and make list, alias and first page anew.

    `latest` is the newest release, whichever was built last; before the first release, the newest of all.
    """
    read_version(version)
    into.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(into / version, ignore_errors=True)
    shutil.copytree(site, into / version)
    there = versions(into)
    latest = next((each for each in there if not Version(each).is_prerelease), there[0])
    rows = [{"version": each, "title": each, "aliases": [LATEST] * (each == latest)} for each in there]
    (into / "versions.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    (into / "index.html").write_text(TO_THE_LATEST, encoding="utf-8")
    (into / LATEST).unlink(missing_ok=True)
    (into / LATEST).symlink_to(latest, target_is_directory=True)


def versions(into: Path) -> list[str]:
    """Versions whose pages are there, the newest first."""
    folders = [path.name for path in into.iterdir() if path.is_dir() and not path.is_symlink()]
    return sorted((name for name in folders if _is_version(name)), key=Version, reverse=True)


def _is_version(name: str) -> bool:
    try:
        return bool(Version(name))
    except InvalidVersion:
        return False
