"""Build the site: `make docs`, or `make docs-version` for one version among others.

Whatever a page links to has to be there, or nothing is built.
The generator reads `mkdocs.yml`. It is Zensical, which those who wrote Material for MkDocs go on with.
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from tools.documentation import versions
from tools.documentation.pages import gather
from tools.documentation.reference import pages

from stretto import __version__
from stretto.model import InputError

ROOT = Path(__file__).resolve().parents[2]
GATHERED = ROOT / "build" / "docs"  # as mkdocs.yml names it
VERSIONED = (
    ROOT / "build" / "version.yml"
)  # settings for a version among others; its site is built beside them


def main() -> int:
    """Build the pages as they stand, alone or as a version among others; the generator's status."""
    options = argparse.ArgumentParser(prog="python -m tools.documentation", description=__doc__)
    options.add_argument(
        "--into", type=Path, help="the folder of all versions; without it the site stands alone"
    )
    options.add_argument(
        "--version", default=__version__, help="whose pages these are (default: %(default)s)"
    )
    given = options.parse_args()
    if given.into is None:
        return build("mkdocs.yml")
    try:
        versions.read_version(given.version)
    except InputError as wrong:
        print(wrong, file=sys.stderr)
        return wrong.exit_status
    VERSIONED.parent.mkdir(exist_ok=True)
    site = VERSIONED.with_suffix("")
    versions.write_settings(VERSIONED, site, GATHERED, usual=ROOT / "mkdocs.yml")
    status = build(str(VERSIONED))
    if status == 0:
        versions.publish(site, given.version, given.into)
        print(f"{given.into}: {', '.join(versions.versions(given.into))}")
    return status


def build(settings: str) -> int:
    """Gather pages, make the reference and run the generator; its status."""
    shutil.rmtree(GATHERED, ignore_errors=True)
    gather(ROOT, GATHERED)
    (GATHERED / "reference").mkdir()
    for name, text in pages().items():
        (GATHERED / "reference" / name).write_text(text, encoding="utf-8")
    command = [str(Path(sys.executable).with_name("zensical")), "build", "--clean", "--strict"]
    return subprocess.run([*command, "--config-file", settings], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
