"""Man pages: one for each command, in a form that man shows without a complaint."""

import shutil
import subprocess

import pytest
from tools.documentation import man

PAGES = dict(man.pages())


def test_every_command_has_a_page() -> None:
    assert {"stretto.1", "stretto-serve.1", "stretto-nodes-drain.1", "stretto-context-set.1"} <= PAGES.keys()
    assert r"\-\-policy" in PAGES["stretto-simulate.1"]
    assert "stretto\\-submit (1)" in PAGES["stretto.1"]


@pytest.mark.processes
@pytest.mark.skipif(not shutil.which("groff"), reason="no groff here")
def test_man_shows_every_page_without_a_complaint() -> None:
    for name, text in PAGES.items():
        shown = subprocess.run(
            ["groff", "-Kutf8", "-man", "-Tutf8", "-ww", "-z"],
            input=text,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (shown.returncode, shown.stderr) == (0, ""), name
