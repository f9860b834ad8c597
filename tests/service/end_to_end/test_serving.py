"""A real server answers real requests: its latency is broken on one worker, and kept on what it is given."""

import json
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from sklearn.datasets import load_digits

from stretto.client import Client
from stretto.demo.own_service import until
from stretto.model import InputError

from ..running import Running

pytestmark = [pytest.mark.processes, pytest.mark.alone, pytest.mark.torch]

EXAMPLES = Path(__file__).parents[3] / "examples"
# A batch of b pictures takes 0.1 + 0.1 b seconds. Two batches of 4 fit into the latency, so a worker
# answers 8 requests a second in time. A batch of 32, which the script would allow, takes 3.3 seconds.
SLOWLY_S, EACH_S, BATCH = 0.1, 0.1, 32
LATENCY_S, PER_S = 1.1, 10.0
IN_TIME = 0.95  # of requests that a sample of which is looked at
SAMPLE = 80
PICTURES, DIGITS = load_digits(return_X_y=True)


class Load:
    """Asks for digits at even intervals, whatever becomes of earlier requests, and measures each answer."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.latencies_s: list[float] = []
        self.right = self.asked_again = self.asked = 0
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._asking: list[threading.Thread] = []

    def run(self) -> None:
        begun_s = time.monotonic()
        while not self._over.wait(max(begun_s + self.asked / PER_S - time.monotonic(), 0.0)):
            asker = threading.Thread(target=self._ask, args=(self.asked % len(PICTURES),))
            asker.start()
            self._asking.append(asker)
            self.asked += 1

    def end(self) -> None:
        """Stop asking, and wait for the last answers."""
        self._over.set()
        for asker in self._asking:
            asker.join()

    def _ask(self, number: int) -> None:
        asked_s = time.monotonic()
        while True:
            try:
                request = urllib.request.Request(self.url, json.dumps(PICTURES[number].tolist()).encode())
                with urllib.request.urlopen(request, timeout=300.0) as answer:
                    digit = json.load(answer)["digit"]
                break
            except (urllib.error.URLError, OSError):
                if self._over.is_set():
                    return
                with self._lock:
                    self.asked_again += 1
                time.sleep(0.05)
        with self._lock:
            self.latencies_s.append(time.monotonic() - asked_s)
            self.right += digit == DIGITS[number]


@contextmanager
def asking(port: int) -> Iterator[Load]:
    load = Load(port)
    thread = threading.Thread(target=load.run)
    thread.start()
    try:
        yield load
    finally:
        load.end()
        thread.join()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def share_in_time(latencies_s: list[float]) -> float:
    return sum(latency_s <= LATENCY_S for latency_s in latencies_s) / len(latencies_s)


def written(client: Client, job: str) -> str:
    """By its first worker so far; that one is decided about before it is begun."""
    with suppress(InputError):
        return "".join(client.log(job))
    return ""


def sizes(running: Running) -> list[int]:
    """What the only job was given, in the order of decisions."""
    decided = [body for _, _, kind, body in running.log_of_all() if kind == "Decided"]
    actions = [action for body in decided for action in body["actions"]]
    return [
        sum(mask.bit_count() for mask in action["after"]["nodes"].values()) if action["after"] else 0
        for action in actions
    ]


def test_a_server_gets_the_workers_that_keep_its_latency_and_no_more(tmp_path: Path) -> None:
    running = Running(
        tmp_path,
        *("--slots", "3", "--gpu-type", "cpu", "--policy", "sia", "--set", "policy.round_s=5"),
    )
    running.begin()
    port = free_port()
    try:
        with running.client() as client:
            job = {
                "name": "digits",
                "run": f"exec {sys.executable} serve_digits.py --port {port} --batch {BATCH}"
                f" --slowly {SLOWLY_S} --each {EACH_S} --report 2",
                "workdir": str(EXAMPLES),
                "purpose": "serving",
                "serving": {"latency": f"{LATENCY_S}s", "requests_per_s": PER_S},
                "resources": {"accelerators": 1},
                "elastic": {"min": 1, "max": 3},
                "grace_period": "20s",
                "envs": {"OMP_NUM_THREADS": "1"},
            }
            name = str(client.submit(json.dumps(job))["id"])
            until(lambda: "listens" in written(client, name), 180.0, "one worker listens")
            assert client.describe(name)["training_gpus"] == 1, "it begins with the fewest"
            with asking(port) as load:
                until(lambda: client.describe(name)["training_gpus"] > 1, 240.0, "it gets more workers")
                alone = len(load.latencies_s)
                assert alone > 10
                until(lambda: client.describe(name)["gpus"] == 2, 60.0, "which are two")
                # What waited for the one worker is answered late by it, and what comes now is not.
                until(
                    lambda: (
                        len(load.latencies_s) > SAMPLE
                        and share_in_time(load.latencies_s[-SAMPLE:]) >= IN_TIME
                    ),
                    240.0,
                    "requests are answered in time",
                )
                until(
                    lambda: (client.describe(name)["serving"] or {}).get("p99_s", 9.0) <= LATENCY_S,
                    60.0,
                    "as the workers say, too",
                )
                shown = client.describe(name)
            assert shown["attempt"] == 1, "in place"
            assert shown["serving"]["late"] > 0, "on one worker"
            (need,) = shown["serving"]["needs"]
            assert (need["gpus"], need["timed"]) == (2, True)
            assert need["batch"] in (3, 4), "of the 32 that the script would allow"
            assert load.right >= 0.9 * len(load.latencies_s), "it still knows its digits"
            client.change(name, "cancel")
            until(lambda: client.describe(name)["ended_s"], 60.0, "it ends")
        answered = len(load.latencies_s)
        assert answered == load.asked, "every request has an answer"
        assert sizes(running) == [1, 2]
        decisions, differences = running.differences()
        assert decisions
        assert not differences, "decided again, the same comes out"
    finally:
        running.end()
