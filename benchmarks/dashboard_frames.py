"""How the dashboard's pages bear many jobs: first paint, bytes, and times between frames as changes come in.

    python benchmarks/dashboard_frames.py --jobs 100 10000 --seconds 20

A service with an emulated cluster is started, arrays of jobs are submitted, and each page is opened in the
Chromium of the system. Jobs start and end, and some are submitted and cancelled all the time. Meanwhile the
page scrolls up and down, and the time between two frames (`requestAnimationFrame`) is noted, and tasks of the
page that took more than 50 ms. Chromium draws without a GPU, and shares its cores with the service: times are
those of a slow laptop.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from stretto.demo.own_service import OwnService, until

PAGES = {  # and what is there once a page has its data
    "/": ".node .part",
    "/queue": "table.jobs tbody tr td",
    "/timeline": ".lanes li .scrub",
    "/jobs/1_0": "h2.title",
    "/people": "#usage",
    "/decisions": "#decided",
    "/whatif": "form button",
}
QUIET = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")
NODES, GPUS = 64, 8  # of each of two types
TASKS = 1_000  # of an array at most
SIZES, MINUTES = (1, 1, 2, 4, 8), (240, 5, 480, 600, 120)
STIR_S = 0.15  # between two things that somebody does
PATIENCE_MS = 300_000
# Frames and long tasks are noted, while the page goes down and up by a window each second.
TRACE = """async (seconds) => {
  const gaps = [], tasks = [];
  const note = (list) => list.getEntries().forEach((entry) => tasks.push(entry.duration));
  const watch = new PerformanceObserver(note);
  watch.observe({ entryTypes: ["longtask"] });
  const began = performance.now();
  let last = began, moved = began, way = 1;
  await new Promise((done) => {
    const frame = (at) => {
      gaps.push(at - last);
      last = at;
      if (at - moved > 100) {
        moved = at;
        if (scrollY + innerHeight >= document.documentElement.scrollHeight - 2) way = -1;
        if (scrollY <= 0) way = 1;
        scrollBy(0, way * innerHeight / 10);
      }
      if (at - began < seconds * 1000) requestAnimationFrame(frame); else done();
    };
    requestAnimationFrame(frame);
  });
  watch.disconnect();
  return [gaps.slice(1), tasks];
}"""


def submit(service: OwnService, jobs: int) -> None:
    """So many jobs, in arrays of several sizes."""
    with service.client() as client:
        number = 0
        while jobs > 0:
            tasks = min(TASKS, jobs, 50 if number < len(SIZES) else TASKS)
            said = {
                "name": f"train-{number}",
                "run": "true",
                "model": "resnet18",
                "array": f"0-{tasks - 1}",
                "resources": {"accelerators": str(SIZES[number % len(SIZES)])},
                "expected_time": f"{MINUTES[number % len(MINUTES)]}m",
            }
            client.submit(json.dumps(said))
            jobs, number = jobs - tasks, number + 1
        until(lambda: client.describe("1_0")["gpus"] > 0, what="the first job has GPUs")


@contextmanager
def stirred(service: OwnService) -> Iterator[None]:
    """Somebody submits and cancels jobs, several each second."""
    is_over = threading.Event()

    def stir() -> None:
        with service.client() as client:
            while not is_over.wait(STIR_S):
                job = str(client.submit('{name: comes-and-goes, run: "true"}')["id"])
                is_over.wait(STIR_S)
                client.change(job, "cancel")

    somebody = threading.Thread(target=stir)
    somebody.start()
    try:
        yield
    finally:
        is_over.set()
        somebody.join()


def seen(browser: Browser, service: OwnService, path: str, seconds: float) -> dict[str, Any]:
    """What one page costs."""
    context = browser.new_context(viewport={"width": 1440, "height": 900}, base_url=service.url)
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    network = context.new_cdp_session(page)
    got = {"bytes": 0, "on_the_way": 0, "changes": 0}

    def came(told: dict[str, Any]) -> None:
        got["bytes"] += told["dataLength"]
        got["on_the_way"] += told["encodedDataLength"]

    network.on("Network.dataReceived", came)
    network.on("Network.eventSourceMessageReceived", lambda told: got.update(changes=got["changes"] + 1))
    network.send("Network.enable")
    began = time.perf_counter()
    page.goto(path)
    page.locator(PAGES[path]).first.wait_for()
    there_s, before = time.perf_counter() - began, dict(got)
    gaps, tasks = page.evaluate(TRACE, seconds)
    figures = {
        "first_paint_ms": first_paint(page),
        "data_ms": round(1000 * there_s),
        "first_kb": round(before["bytes"] / 1000),
        "first_on_the_way_kb": round(before["on_the_way"] / 1000),  # compressed, where it is
        "kb_per_s": round((got["bytes"] - before["bytes"]) / 1000 / seconds, 1),
        "changes_per_s": round((got["changes"] - before["changes"]) / seconds, 1),
        "frames": len(gaps),
        **{f"frame_p{part}_ms": round(of_sorted(gaps, part), 1) for part in (50, 95, 99)},
        "frame_most_ms": round(max(gaps), 1),
        "long_tasks": len(tasks),
        "long_task_most_ms": round(max(tasks, default=0.0)),
    }
    context.close()
    return figures


def first_paint(page: Page) -> int:
    """Milliseconds from the request of a page until it shows something."""
    paint = "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"
    return int(page.evaluate(paint))


def of_sorted(values: list[float], part: int) -> float:
    """A percentile."""
    return sorted(values)[min(len(values) - 1, len(values) * part // 100)]


def measured(jobs: int, seconds: float, policy: str, pace: float) -> dict[str, Any]:
    """All pages of one service."""
    with tempfile.TemporaryDirectory() as folder:
        types = {"a100": {"memory_gb": 40}, "v100": {"memory_gb": 32}}
        nodes = [{"type": name, "gpus": GPUS, "count": NODES} for name in types]
        cluster = Path(folder, "cluster.yaml")
        cluster.write_text(json.dumps({"name": "many", "gpu_types": types, "nodes": nodes}), encoding="utf-8")
        options = (
            "--backend",
            "emulated",
            "--cluster",
            str(cluster),
            "--policy",
            policy,
            "--pace",
            f"{pace:g}",
        )
        service = OwnService(Path(folder), options, ("-m", "stretto.cli.app"))
        try:
            service.begin()
            submit(service, jobs)
            with stirred(service), sync_playwright() as started:
                browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=list(QUIET))
                figures = {path: seen(browser, service, path, seconds) for path in PAGES}
                browser.close()
        finally:
            service.end()
    return figures


def main() -> None:
    """Measure with each number of jobs, print."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    asked.add_argument("--jobs", type=int, nargs="+", default=[100, 10_000])
    asked.add_argument("--seconds", type=float, default=20.0, help="that each page is looked at")
    asked.add_argument("--policy", default="fifo")
    asked.add_argument("--pace", type=float, default=20.0, help="how much faster than real jobs run")
    given = asked.parse_args()
    before = os.getloadavg()[0]
    figures = {str(jobs): measured(jobs, given.seconds, given.policy, given.pace) for jobs in given.jobs}
    loads = {"before": before, "after": os.getloadavg()[0]}
    json.dump({"given": vars(given), "cores": os.cpu_count(), "load": loads, **figures}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
