"""The picture of the dashboard in the README: elastic jobs on an emulated cluster, light and dark.

    python -m tests.service.http.readme_picture

The cluster and its workers are emulated, and their time goes faster than ours. The scheduler, the service,
the pages and the browser are real. Jobs come one after the other, so that one sees them share and give way.
It takes three minutes, and writes `docs/timeline-light.png` and `docs/timeline-dark.png`.
"""

import argparse
import random
import tempfile
from pathlib import Path
from typing import Any

from tests.service.http.chromium import CHROMIUM, QUIET
from tests.service.http.pictures import PEOPLE, Scene, a_scene, job_text, logged_in, settle

from stretto.client import Client

DOCS = Path(__file__).parents[3] / "docs"
CLUSTER, GPUS, POLICY, PACE = "sia-hetero-64", 64, "sia", 20.0
ELASTIC = (0, 2, 3, 0, 5, 2, 3, 4, 2, 6)  # which of the trainings comes next
JOBS, EVERY_S = 44, 4.0
PAGE, IS_THERE = "/timeline?hours=1&ahead=0.5", ".lanes li .area"
WIDTH, HEIGHT = 1280, 860
MOST_BYTES = 200_000


def played(scene: Scene, browser: Any) -> None:
    """Let jobs come, one after the other."""
    chance = random.Random(7)
    waiting = browser.new_page()
    for index in range(JOBS):
        user = chance.choice(list(PEOPLE))
        client = Client(scene.service.url, scene.tokens[user])
        try:
            client.submit(job_text(ELASTIC[index % len(ELASTIC)], chance, user))
        finally:
            client.http.close()
        waiting.wait_for_timeout(1_000 * EVERY_S)
    waiting.close()


def taken(browser: Any, scene: Scene, out: Path) -> None:
    """The same page with all that it shows, light and dark."""
    context = logged_in(browser, scene, scene.root, WIDTH, "light")
    page = context.new_page()
    page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    page.goto(PAGE)
    page.locator(IS_THERE).first.wait_for()
    page.locator(".sum .middle[d^=M]").wait_for(state="attached")  # a forecast; a flat one is not "visible"
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        path = out / f"timeline-{scheme}.png"
        page.screenshot(path=path)
        assert path.stat().st_size < MOST_BYTES, f"{path.name} has {path.stat().st_size} bytes"
    context.close()


def main() -> None:
    """Take both."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    asked.add_argument("--out", type=Path, default=DOCS)
    given = asked.parse_args()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started, tempfile.TemporaryDirectory() as folder:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        with a_scene("readme", Path(folder), CLUSTER, POLICY, PACE) as scene:
            settle(scene, GPUS)
            played(scene, browser)
            taken(browser, scene, given.out)
        browser.close()


if __name__ == "__main__":
    main()
