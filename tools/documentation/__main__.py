"""Build the site: `make docs`. Whatever a page links to has to be there, or nothing is built.

The generator reads `mkdocs.yml`. It is Zensical, which those who wrote Material for MkDocs go on with.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from tools.documentation.pages import gather
from tools.documentation.reference import pages

ROOT = Path(__file__).resolve().parents[2]
GATHERED = ROOT / "build" / "docs"  # as mkdocs.yml names it


def main() -> int:
    """Gather, make and build; the generator's status."""
    shutil.rmtree(GATHERED, ignore_errors=True)
    gather(ROOT, GATHERED)
    (GATHERED / "reference").mkdir()
    for name, text in pages().items():
        (GATHERED / "reference" / name).write_text(text, encoding="utf-8")
    command = [str(Path(sys.executable).with_name("zensical")), "build", "--clean", "--strict"]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
