"""The page in a real browser, where one is installed: its own script runs under its own policy."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from stretto.report import render

from .made_runs import a_comparison

BROWSER = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
TRIAL = """
const out = {};
const point = (selector, x, y) => {
  const node = document.querySelector(selector), box = node.getBoundingClientRect();
  node.dispatchEvent(new PointerEvent("pointermove",
    {clientX: box.left + x * box.width, clientY: box.top + y * box.height, bubbles: true}));
  return document.getElementById("readout").innerText;
};
out.distribution = point("#jct-cdf svg", .5, .5);
out.job = point("#s0-timelines .panel svg", .2, .4);
document.querySelector('[data-toggle="1"]').click();
out.without = point("#jct-cdf svg", .5, .5);
out.hidden = document.querySelectorAll(".panel.off").length;
document.querySelector("[data-toggle=all]").click();
out.shown = document.querySelectorAll(".off").length;
out.wide = document.documentElement.scrollWidth <= innerWidth;
document.title = "TRIAL " + JSON.stringify(out);
"""

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(BROWSER is None, reason="no chromium or chrome is installed"),
]


def seen(page: str, folder: Path, width: int = 1_440) -> tuple[str, str]:
    """The page's document after its script ran, and what the browser complained about."""
    path = folder / "report.html"
    path.write_text(page, encoding="utf-8")
    quiet = "--disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-sync"
    found = subprocess.run(
        [
            str(BROWSER),
            "--headless",
            "--no-sandbox",
            *quiet.split(),
            "--disable-component-update",
            "--enable-logging=stderr",
            f"--user-data-dir={folder / 'profile'}",
            f"--window-size={width},1000",
            "--dump-dom",
            path.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return found.stdout, "\n".join(line for line in found.stderr.splitlines() if "CONSOLE" in line)


def test_the_script_runs_and_the_console_stays_silent(tmp_path: Path) -> None:
    document, complaints = seen(render(a_comparison(("stretto", "sia"), jobs=30)), tmp_path)
    assert re.search(r'<html[^>]* class="live"', document)
    assert complaints == ""


@pytest.mark.parametrize("width", [1_440, 700])
def test_pointing_reads_values_and_a_switch_hides_a_policy_everywhere(width: int, tmp_path: Path) -> None:
    page = render(a_comparison(("stretto", "sia", "fifo"), jobs=60))
    unguarded = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
    document, _ = seen(unguarded.replace("</body>", f"<script>{TRIAL}</script></body>"), tmp_path, width)
    title = re.search(r"<title>TRIAL (.*?)</title>", document, re.DOTALL)
    assert title
    words = title.group(1)
    assert re.search(r'"distribution":"[^"]*stretto[^"]*%[^"]*sia[^"]*%', words)
    assert '"job":"job-00' in words
    assert not re.search(r'"without":"[^"]*sia', words)
    assert '"hidden":2,"shown":0,"wide":true' in words
