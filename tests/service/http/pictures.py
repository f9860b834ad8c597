"""Pictures of every page of the dashboard, for people to look at: light and dark, at three widths.

    python -m tests.service.http.pictures --out out/pictures --scenes empty everyday busy broken

There are four scenes. *empty* is a service without jobs. *everyday* has some hundred jobs on 64 GPUs, *busy*
has 10,000 on 1,024 GPUs, and *broken* is a service that has died under its pages. The clusters are emulated.
Pages, service and browser are real.
"""

import argparse
import json
import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.service.http.chromium import CHROMIUM, PATIENCE_MS, QUIET, WIDTHS, fits
from tests.service.running import Running

from stretto.client import Client
from stretto.demo.own_service import FIRST_TOKEN, until

LOOPBACK = "127.0.0.2"  # there a service asks for tokens
SCHEMES = ("light", "dark")
HEIGHTS = {360: 780, 1024: 768, 2560: 1440}
TASKS = 1_000  # of an array at most
PAGES = {  # and what is there once it has its data, in a scene with jobs
    "cluster": ("/", ".node .part"),
    "queue": ("/queue", "table.jobs tbody tr"),
    "timeline": ("/timeline", ".lanes li .area"),
    "whatif": ("/whatif?policy=fifo", "table.sides tbody tr, .foretold .wrong"),  # too many jobs
    "people": ("/people", "section[aria-labelledby=usage] tbody tr"),
    "decisions": ("/decisions", "section[aria-labelledby=decided] tbody tr"),
    "job": ("/jobs/JOB", "pre.log"),
    "waiting-job": ("/jobs/WAITING", "section[aria-labelledby=why]"),
}
TRAININGS = (  # name, model, GPUs asked for, range, minutes on that
    ("resnet18-cifar10", "resnet18-cifar10", 1, (1, 16), 0),  # as the catalogue of models says
    ("resnet50-imagenet", "resnet50-imagenet", 4, (2, 32), 0),
    ("bert-squad", "bert-squad", 2, (1, 16), 0),
    ("deepspeech2-cmu", "deepspeech2", 2, (1, 8), 0),
    ("yolov3-voc", "yolov3", 4, (1, 16), 0),
    ("gpt2-openwebtext", "", 8, None, 1_100),
    ("ablation-lr", "", 1, None, 35),
    ("vit-finetune", "", 4, None, 180),
)
PEOPLE = {"ada": "vision", "bob": "language", "chen": "speech", "dora": "vision", "emil": "language"}
QUOTAS = {"vision": 0.4, "language": 0.4, "speech": 0.2}  # of all GPUs


@dataclass
class Scene:
    """A service to look at, and which of its jobs to look at."""

    name: str
    service: Running
    job: str = ""
    waiting: str = ""
    tokens: dict[str, str] = field(default_factory=dict)  # by user

    @property
    def root(self) -> str:
        return (self.service.state / FIRST_TOKEN).read_text(encoding="ascii").strip()

    def path(self, path: str) -> str:
        return path.replace("JOB", self.job or "1").replace("WAITING", self.waiting or "1")


@contextmanager
def a_scene(name: str, folder: Path, cluster: str, policy: str, pace: float) -> Iterator[Scene]:
    """A service on an emulated cluster that knows queues and users."""
    options = ("--backend", "emulated", "--cluster", cluster, "--policy", policy, "--pace", f"{pace:g}")
    more = ("--submit-rate", "1000", "--submit-burst", "100000", "--keep-ended", "30d")
    service = Running(folder, *options, *more)
    service.host = LOOPBACK
    try:
        service.begin()
        yield Scene(name, service)
    finally:
        service.end()


def settle(scene: Scene, gpus: int) -> None:
    """Give it queues, users and prices."""
    with scene.service.client() as root:
        for queue, share in QUOTAS.items():
            root.set_queue(queue, quota_gpus=int(share * gpus))
        for user in PEOPLE:
            scene.tokens[user] = str(root.make_token(user, user, "user")["token"])


def job_text(index: int, chance: random.Random, user: str, tasks: int = 1) -> str:
    """One training, or an array of such."""
    name, model, gpus, elastic, minutes = TRAININGS[index % len(TRAININGS)]
    said: dict[str, Any] = {
        "name": name,
        "run": "true",
        "model": model,
        "queue": PEOPLE[user],
        "resources": {"accelerators": str(gpus)},
        "checkpoint": {"every": "10m"},
    }
    if minutes:
        said["expected_time"] = f"{max(minutes * chance.lognormvariate(0.0, 0.5), 4):.0f}m"
    if elastic is not None:
        said["elastic"] = {"min": elastic[0], "max": elastic[1]}
        said["batch"] = {"policy": "adaptive"}
    if tasks > 1:
        said["array"] = f"0-{tasks - 1}"
    return json.dumps(said)


def submit(scene: Scene, jobs: int, seed: int = 1, at_once: int = 1) -> list[str]:
    """So many jobs of several users, some of them in arrays."""
    chance = random.Random(seed)
    ids: list[str] = []
    clients = {user: Client(scene.service.url, token) for user, token in scene.tokens.items()}
    try:
        while jobs > 0:
            user = chance.choice(list(PEOPLE))
            tasks = 1 if len(ids) < 40 else min(at_once, jobs)
            text = job_text(chance.randrange(len(TRAININGS)), chance, user, tasks)
            ids.append(str(clients[user].submit(text)["id"]))
            jobs -= tasks
    finally:
        for client in clients.values():
            client.http.close()
    return ids


def look_for_jobs(scene: Scene) -> None:
    """A job that has been resized, and one that waits for long."""
    with scene.service.client() as root:
        until(lambda: any(job["gpus"] for job in root.jobs(everybody=True)), what="a job has GPUs")
        running = [job for job in root.jobs(everybody=True) if job["gpus"]]
        line = root.ask("GET", "/api/v1/line")["line"]
    running.sort(key=lambda job: (-job["resizes"], -job["gpu_s"]))
    scene.job = str(running[0]["id"]) if running else "1"
    scene.waiting = str(line[2 * len(line) // 3][0]) if line else scene.job


def logged_in(browser: Any, scene: Scene, token: str, width: int, scheme: str) -> Any:
    """A window of somebody who is logged in."""
    viewport = {"width": width, "height": HEIGHTS.get(width, 900)}
    context = browser.new_context(viewport=viewport, color_scheme=scheme, base_url=scene.service.url)
    context.set_default_timeout(PATIENCE_MS)
    origin = {"origin": scene.service.url}
    answer = context.request.post("/login", data={"token": token}, headers=origin)
    assert answer.ok, answer.text()
    return context


@dataclass
class Camera:
    """Takes pictures, and notes what is wrong with a page that a program can see."""

    out: Path
    wrong: list[str] = field(default_factory=list)
    taken: list[Path] = field(default_factory=list)

    def take(self, page: Any, name: str, scheme: str, width: int) -> None:
        """The page, up to two screens of it."""
        path = self.out / f"{name}-{width}-{scheme}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        if not fits(page):
            self.wrong.append(f"{path.name}: wider than its window")
        tall = int(page.locator("html").evaluate("e => e.scrollHeight"))
        shown = max(HEIGHTS.get(width, 900), min(tall, 2 * HEIGHTS.get(width, 900)))
        page.set_viewport_size({"width": width, "height": shown})  # lists draw what is in the window
        page.wait_for_timeout(200)
        page.screenshot(path=path)
        page.set_viewport_size({"width": width, "height": HEIGHTS.get(width, 900)})
        self.taken.append(path)


def photographed(
    browser: Any,
    scene: Scene,
    camera: Camera,
    schemes: Sequence[str],
    widths: Sequence[int],
    pages: Sequence[str],
) -> None:
    """Every page of a scene with its data."""
    for scheme in schemes:
        for width in widths:
            context = logged_in(browser, scene, scene.root, width, scheme)
            page = context.new_page()
            said: list[str] = []
            page.on("console", lambda message, said=said: said.append(message.text))
            page.on("pageerror", lambda error, said=said: said.append(str(error)))
            for name in pages:
                path, there = PAGES[name]
                if "WAITING" in path and scene.name != "empty":
                    look_for_jobs(scene)  # another one: that of before may have started
                page.goto(scene.path(path))
                page.locator("main:not(.login)").wait_for()
                wanted = (
                    page.locator(there).first
                    if scene.name != "empty"
                    else page.locator(".node, .empty, .foretold:not(:empty)").first
                )
                wanted.wait_for()
                settled(page)
                camera.take(page, f"{scene.name}-{name}", scheme, width)
            camera.wrong += [f"{scene.name} {width} {scheme}: console: {line}" for line in said]
            context.close()


def settled(page: Any) -> None:
    """What is still being worked out has come, if it comes soon."""
    page.wait_for_timeout(700)
    with_patience = page.get_by_text("being worked out")
    for _ in range(60):
        if not with_patience.count() and not page.get_by_text("Simulating futures").count():
            return
        page.wait_for_timeout(500)


def broken(
    browser: Any,
    scene: Scene,
    camera: Camera,
    schemes: Sequence[str],
    widths: Sequence[int],
    pages: Sequence[str],
) -> None:
    """Pages whose service dies while they are open."""
    opened = []
    for scheme in schemes:
        for width in widths:
            context = logged_in(browser, scene, scene.root, width, scheme)
            for name in pages:
                path, there = PAGES[name]
                page = context.new_page()
                page.goto(scene.path(path))
                page.locator(there).first.wait_for()
                opened.append((page, name, scheme, width))
    scene.service.kill()
    for page, name, scheme, width in opened:
        page.bring_to_front()
        page.get_by_role("alert").filter(has_text="does not answer").wait_for()
        camera.take(page, f"broken-{name}", scheme, width)
    for page, *_ in opened:
        page.close()
    scene.service.begin()


SCENES: dict[str, tuple[int, int, float, str]] = {  # jobs, GPUs, pace, policy
    "empty": (0, 64, 1.0, "sia"),
    "everyday": (44, 64, 30.0, "sia"),
    "busy": (10_000, 1_024, 20.0, "sia"),
}


def a_cluster(folder: Path) -> str:
    """1,024 GPUs of three types."""
    types = {
        "a100": {"memory_gb": 40, "speed": 3.0},
        "rtx": {"memory_gb": 24, "speed": 1.6},
        "t4": {"memory_gb": 16},
    }
    nodes = [
        {"type": name, "gpus": 8 if name != "t4" else 4, "count": 48 if name != "t4" else 64}
        for name in types
    ]
    path = folder / "cluster.yaml"
    path.write_text(json.dumps({"name": "many", "gpu_types": types, "nodes": nodes}), encoding="utf-8")
    return str(path)


def staged(scene: Scene, jobs: int, gpus: int) -> None:
    """Let its jobs come, and some of its nodes be closed and lent."""
    if not jobs:
        return
    settle(scene, gpus)
    ids = submit(scene, jobs, at_once=1 if jobs < 1_000 else TASKS // 4)
    with scene.service.client() as root:
        names = [str(node["name"]) for node in root.nodes()]
        root.close_node(names[-1], closed=True, drain=True, why="fan is loud")
        root.set_lender("search", nodes=names[-3:-1], headroom=0.0)
        root.report_need("search", nodes=1)
        root.change(ids[-2], "hold")
        root.change(ids[-3], "cancel")
    look_for_jobs(scene)


def main() -> None:
    """Take the pictures that are asked for, and say what is wrong."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    asked.add_argument("--out", type=Path, default=Path("out/pictures"))
    asked.add_argument("--scenes", nargs="+", default=[*SCENES, "broken"])
    asked.add_argument("--pages", nargs="+", default=list(PAGES))
    asked.add_argument("--schemes", nargs="+", default=list(SCHEMES))
    asked.add_argument("--widths", nargs="+", type=int, default=list(WIDTHS))
    asked.add_argument("--wait", type=float, default=20.0, help="seconds of jobs before the first picture")
    given = asked.parse_args()
    from playwright.sync_api import sync_playwright

    camera = Camera(given.out)
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        for name in given.scenes:
            jobs, gpus, pace, policy = SCENES["everyday" if name == "broken" else name]
            with tempfile.TemporaryDirectory() as folder:
                cluster = a_cluster(Path(folder)) if gpus > 64 else "sia-hetero-64"
                with a_scene(name, Path(folder), cluster, policy, pace) as scene:
                    staged(scene, jobs, gpus)
                    until_s = given.wait if jobs else 0.0
                    browser_wait(browser, until_s)
                    if jobs:
                        look_for_jobs(scene)
                    shoot = broken if name == "broken" else photographed
                    shoot(browser, scene, camera, given.schemes, given.widths, given.pages)
        browser.close()
    for line in camera.wrong:
        print(line)
    print(f"{len(camera.taken)} pictures in {given.out}")


def browser_wait(browser: Any, seconds: float) -> None:
    """Let jobs run for a while."""
    page = browser.new_page()
    page.wait_for_timeout(1_000 * seconds)
    page.close()


if __name__ == "__main__":
    main()
