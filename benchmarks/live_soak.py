"""How a service grows over tens of thousands of jobs that come and end: memory, and files.

    python benchmarks/live_soak.py --jobs 50000 --gpus 512 --pace 500

A service with an emulated cluster is started in a process of its own. Jobs of a minute or two are submitted
one after the other, so many that some wait; every so many ends, its memory and its files are looked at, and
in the end it is said how memory rose over the second half. With `--trace FILE` the service keeps account of
what it allocates, which makes it several times as slow, and FILE says where what has grown over the second
half was allocated.
"""

import argparse
import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.live_load import Connection, rss_of, say

CONNECTIONS = 8
LASTS_S = (60.0, 120.0)  # jobs; chosen: as short as the SDK's reports are apart
AHEAD = 500  # jobs that are open at most; chosen: some always wait
LOOK_S = 0.5  # between two questions for how many have ended
LEAST_TO_TELL = 10  # looks, for a slope


def job(number: int, draw: random.Random) -> str:
    """A short job under a name of its own, as scripts that submit call theirs."""
    said = {
        "name": f"soak-{number}",
        "run": "python train.py --epochs 90",
        "resources": {"accelerators": str(draw.choice((1, 1, 2, 4)))},
        "expected_time": f"{draw.uniform(*LASTS_S):.0f}s",
    }
    return json.dumps(said)


async def counted(connection: Connection) -> tuple[int, int]:
    """(jobs that have ended, jobs that have not)."""
    _, text = await connection.ask("GET", "/metrics")
    found = re.findall(rb'stretto_jobs\{state="(\w+)"\} ([0-9.e+]+)', text)
    counts = {state.decode(): int(float(count)) for state, count in found}
    ended = sum(counts.get(state, 0) for state in ("COMPLETED", "FAILED", "CANCELLED"))
    return ended, sum(counts.values()) - ended


async def soak(given: argparse.Namespace, url: str, process: int, state: Path) -> dict[str, Any]:
    """Submit, look, submit."""
    host, _, port = url.removeprefix("http://").partition(":")
    watcher = Connection(host, int(port))
    while (await watcher.ask("GET", "/readyz"))[0] != 200:
        await asyncio.sleep(0.05)
    numbers, draw, room = iter(range(given.jobs)), random.Random(1), asyncio.Semaphore(AHEAD)

    async def submit() -> None:
        connection = Connection(host, int(port))
        for number in numbers:
            await room.acquire()
            status, content = await connection.ask(
                "POST", "/api/v1/jobs", {"text": job(number, draw)}, key=f"key-{number}"
            )
            if status != 201:
                raise SystemExit(f"a job was refused: {content.decode()}")

    began, freed = time.perf_counter(), 0  # who has ended makes room for others
    submitting = asyncio.gather(*(submit() for _ in range(CONNECTIONS)))
    looks: list[dict[str, Any]] = []
    curve, halfway = [], False
    while True:
        ended, _ = await counted(watcher)
        for _ in range(ended - freed):
            room.release()
        freed = ended
        curve.append((ended, rss_of(process)))
        if given.trace and not halfway and ended >= given.jobs / 2:
            halfway = True
            os.kill(process, signal.SIGUSR1)
        if ended >= (len(looks) + 1) * given.every or ended >= given.jobs:
            look = {
                "ended": ended,
                "wall_s": round(time.perf_counter() - began),
                "rss_mb": round(rss_of(process), 1),
                "database_mb": megabytes(state.glob("stretto.db*")),
                "state_directory_mb": megabytes(one for one in state.rglob("*") if one.is_file()),
            }
            looks.append(look)
            say(json.dumps(look))
        if ended >= given.jobs:
            break
        if submitting.done():
            submitting.result()
        await asyncio.sleep(LOOK_S)
    if given.trace:
        os.kill(process, signal.SIGUSR1)
        while not Path(given.trace).exists():
            await asyncio.sleep(0.5)
    late = np.array([one for one in curve if one[0] >= given.jobs / 2])
    slope = float(np.polyfit(late[:, 0], late[:, 1], 1)[0]) if len(late) > LEAST_TO_TELL else float("nan")
    return {"looks": looks, "rises, in the second half, MB per 10,000 jobs": round(1e4 * slope, 2)}


def megabytes(paths: Any) -> float:
    """What files take."""
    total = 0
    for path in paths:
        try:
            total += path.stat().st_size
        except FileNotFoundError:  # a journal comes and goes
            continue
    return round(total / 2**20, 1)


def traced(report: str, words: list[str]) -> None:
    """Be the service, and at every SIGUSR1 note what is allocated; a file says what has grown in between."""
    import gc
    import tracemalloc

    from stretto.cli.app import main as stretto

    seen: list[tracemalloc.Snapshot] = []

    def look(number: int, frame: object) -> None:
        gc.collect()
        seen.append(tracemalloc.take_snapshot())
        if len(seen) < 2:
            return
        lines = []
        for one in seen[-1].compare_to(seen[0], "traceback")[:40]:
            lines += [str(one), *one.traceback.format(), ""]
        Path(report).write_text("\n".join(lines), encoding="utf-8")

    tracemalloc.start(10)
    signal.signal(signal.SIGUSR1, look)
    stretto(words)


def measured(given: argparse.Namespace) -> dict[str, Any]:
    """Start a service, soak it, stop it."""
    with tempfile.TemporaryDirectory() as folder:
        cluster, state = Path(folder, "cluster.yaml"), Path(folder, "state")
        nodes = [{"type": "v100", "gpus": 8, "count": -(-given.gpus // 8)}]
        said = {"name": "soak", "gpu_types": {"v100": {"memory_gb": 32}}, "nodes": nodes}
        cluster.write_text(json.dumps(said))
        words = ["serve", "--state", str(state), "--listen", "127.0.0.1:0", "--insecure-loopback"]
        words += ["--backend", "emulated", "--cluster", str(cluster), "--pace", f"{given.pace:g}"]
        words += ["--policy", given.policy, *given.serve]
        program = [str(Path(sys.executable).with_name("stretto"))]
        if given.trace:
            program = [sys.executable, __file__, "--be-traced", given.trace]
        log = Path(folder, "said")
        with log.open("w") as told:
            service = subprocess.Popen([*program, *words], stdout=told, stderr=told)
        try:
            url = ""
            while not url and service.poll() is None:
                found = re.search(r"http://[\w.:]+", log.read_text())
                url = found.group() if found else ""
                time.sleep(0.05)
            return asyncio.run(soak(given, url, service.pid, state))
        finally:
            service.send_signal(signal.SIGTERM)
            service.wait(60)
            sys.stderr.write(log.read_text())


def main() -> None:
    """Measure, print."""
    if sys.argv[1:2] == ["--be-traced"]:
        traced(sys.argv[2], sys.argv[3:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--jobs", type=int, default=50_000)
    parser.add_argument("--every", type=int, default=5_000, help="ends between two looks")
    parser.add_argument("--gpus", type=int, default=512)
    parser.add_argument("--policy", default="fifo")
    parser.add_argument("--pace", type=float, default=500.0)
    parser.add_argument("--trace", default="", help="a file for where growth was allocated")
    parser.add_argument("--serve", action="append", default=[], help="one more word for `stretto serve`")
    given = parser.parse_args()
    print(json.dumps({"given": vars(given), "cores": os.cpu_count(), **measured(given)}, indent=1))


if __name__ == "__main__":
    main()
