"""Pictures of every page of a dashboard, light and dark, at three widths.

    python tools/screenshots.py http://127.0.0.1:8700 pictures/ --job 1

Chromium of the system draws them; whatever the pages write to their console is printed.
"""

import argparse
import shutil
import time
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

PAGES = ("/", "/queue", "/timeline", "/whatif", "/people", "/decisions")
SCHEMES = ("light", "dark")
WIDTHS = (360, 1280, 2560)
QUIET = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)
HEIGHT = 900
SETTLES_S = 2.5  # until data and a forecast are there


def main() -> None:
    """Draw what is asked for."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("url", help="where the service is")
    asked.add_argument("folder", type=Path, help="where the pictures go")
    asked.add_argument("--job", default="", help="id of a job of which the page is drawn, too")
    asked.add_argument("--page", action="append", default=[], help="this page alone, with its query")
    asked.add_argument("--width", action="append", type=int, default=[], help="this width alone")
    asked.add_argument("--settle", type=float, default=SETTLES_S, help="seconds before a picture")
    given = asked.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    pages = given.page or [
        *PAGES,
        *([f"/jobs/{given.job}", f"/timeline?job={given.job}"] if given.job else []),
    ]
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=list(QUIET))
        for scheme in SCHEMES:
            for width in given.width or WIDTHS:
                draw(browser, given.url, scheme, width, pages, given.folder, given.settle)
        browser.close()


def draw(
    browser: Browser, url: str, scheme: str, width: int, pages: list[str], folder: Path, settle_s: float
) -> None:
    """Draw pages in one window."""
    context = browser.new_context(
        viewport={"width": width, "height": HEIGHT},
        base_url=url,
        color_scheme="dark" if scheme == "dark" else "light",
    )
    page = context.new_page()
    page.on("console", lambda message: print(f"{scheme} {width} {page.url}: {message.text}"))
    page.on("pageerror", lambda error: print(f"{scheme} {width} {page.url}: {error}"))
    for path in pages:
        page.goto(path)
        time.sleep(settle_s)
        name = path.strip("/").translate(str.maketrans("/?=&:,", "------")) or "cluster"
        page.screenshot(path=folder / f"{name}-{width}-{scheme}.png")
    context.close()


if __name__ == "__main__":
    main()
