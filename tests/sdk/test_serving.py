"""Requests are answered by the workers that are there, together as far as the latency allows."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import stretto.sdk
from stretto.errors import InputError
from stretto.sdk import shutdown
from stretto.testing.conductor import Conductor

pytestmark = [pytest.mark.torch, pytest.mark.processes, pytest.mark.sockets]

WITHIN_S = 120.0

# Answers files: one of a name N in the folder `asked` is answered by one of the same name in `answered`.
WORKER = """
import sys, threading, time
from pathlib import Path
import stretto.sdk

folder, name = Path(sys.argv[1]), sys.argv[2]
job = stretto.sdk.serve(batch_size=4, report_s=0.0)
def requests():
    while True:
        for path in sorted((folder / "asked" / name).iterdir()):
            path.unlink()
            job.ask(path.name)
        time.sleep(0.01)

threading.Thread(target=requests, daemon=True).start()
for names in job.batches():
    while (folder / "held").exists():
        time.sleep(0.01)
    for each in names:
        (folder / "answered" / each).write_text(f"{name} {len(names)}")
    job.answer(names)
"""


@pytest.fixture(autouse=True)
def sigterm_means_what_it_did() -> Iterator[None]:
    yield
    for each in [*shutdown.LISTENERS]:
        each.give_back()


# ── alone ─────────────────────────────────────────────────────────────────────────────────────────


def answered(job: Any, batches: int) -> list[list[Any]]:
    """Takes so many batches, and answers each request by twice itself."""
    taken = []
    for batch in job.batches():
        taken.append(batch)
        job.answer([2 * request for request in batch])
        if len(taken) == batches:
            break
    return taken


def test_what_waits_is_answered_together_and_each_asker_gets_its_own_answer() -> None:
    job = stretto.sdk.serve(batch_size=4)
    assert (job.rank, job.world_size) == (0, 1)
    asked = [job.ask(number) for number in range(6)]
    assert answered(job, 2) == [[0, 1, 2, 3], [4, 5]]
    assert [each.result(0) for each in asked] == [0, 2, 4, 6, 8, 10]


def test_askers_on_other_threads_wait_for_the_loop() -> None:
    job = stretto.sdk.serve(batch_size=4)
    told: list[Any] = []
    asker = threading.Thread(target=lambda: told.append(job.ask(21).result(WITHIN_S)))
    asker.start()
    answered(job, 1)
    asker.join(WITHIN_S)
    assert told == [42]


def test_within_a_latency_it_begins_with_single_requests() -> None:
    job = stretto.sdk.serve(batch_size=4, latency_s=10.0)
    for number in range(3):
        job.ask(number)
    assert answered(job, 3) == [[0], [1], [2]]
    assert job.latency_s == 10.0


def test_an_asker_that_has_given_up_is_left_out() -> None:
    job = stretto.sdk.serve(batch_size=4)
    first, second = job.ask(1), job.ask(2)
    assert first.cancel()
    assert answered(job, 1) == [[2]]
    assert second.result(0) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size must be >= 1, got 0"),
        ({"batch_size": 1, "latency_s": 0.0}, "latency_s must be > 0, got 0.0"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        stretto.sdk.serve(**arguments)


def test_a_latency_of_the_job_file_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRETTO_LATENCY_S", "soon")
    with pytest.raises(InputError, match="STRETTO_LATENCY_S must be a number of seconds, got 'soon'"):
        stretto.sdk.serve(batch_size=1)


def test_the_loop_is_one_answer_for_each_request() -> None:
    job = stretto.sdk.serve(batch_size=4)
    with pytest.raises(RuntimeError, match=r"answer\(\) must be called once for each batch"):
        job.answer([])
    left: Future[Any] = job.ask(1)
    assert next(job.batches()) == [1]
    with pytest.raises(ValueError, match="an answer to each of 1 requests, got 2"):
        job.answer([1, 2])
    assert not left.done()


def test_told_to_end_it_answers_what_waits_and_refuses_what_comes_then() -> None:
    job = stretto.sdk.serve(batch_size=1)
    asked = [job.ask(number) for number in range(3)]
    refused = []

    def serve() -> None:
        for place, batch in enumerate(job.batches()):
            if place == 0:
                os.kill(os.getpid(), signal.SIGTERM)
            else:
                with pytest.raises(stretto.sdk.Leaving, match="takes no more requests"):
                    job.ask(place)
                refused.append(place)
            job.answer(batch)

    with pytest.raises(SystemExit) as ended:
        serve()
    assert ended.value.code == 143
    assert [each.result(0) for each in asked] == [0, 1, 2]
    assert refused == [1, 2]


# ── workers of a service ──────────────────────────────────────────────────────────────────────────


class Workers:
    """Processes that the conductor's service has started."""

    def __init__(self, folder: Path, conductor: Conductor) -> None:
        self.folder, self.conductor = folder, conductor
        (folder / "worker.py").write_text(WORKER, encoding="utf-8")
        for name in ("asked", "answered"):
            (folder / name).mkdir()

    def start(self, *names: str) -> None:
        for name in names:
            (self.folder / "asked" / name).mkdir()
            command = [sys.executable, str(self.folder / "worker.py"), str(self.folder), name]
            self.conductor.start(name, command, {"STRETTO_LATENCY_S": "30"})
        self.conductor.wait_until(
            lambda: {*names} <= {*self.conductor.ready}, WITHIN_S, f"ready: {', '.join(names)}"
        )

    def publish(self, *names: str) -> None:
        self.conductor.wait_joined(self.conductor.publish(names), WITHIN_S)

    def ask(self, worker: str, *requests: str) -> None:
        for request in requests:
            (self.folder / "asked" / worker / request).touch()

    def hold(self, holds: bool) -> None:
        held = self.folder / "held"
        held.touch() if holds else held.unlink()

    def wait_answered(self, *requests: str) -> None:
        self.conductor.wait_until(
            lambda: all((self.folder / "answered" / each).exists() for each in requests),
            WITHIN_S,
            f"answers to {', '.join(requests)}",
        )

    def wait_taken(self, worker: str) -> None:
        self.conductor.wait_until(
            lambda: not any((self.folder / "asked" / worker).iterdir()), WITHIN_S, "requests are taken"
        )


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    with Conductor() as conductor:
        yield Workers(tmp_path, conductor)


@pytest.mark.slow
def test_workers_come_and_go_and_each_says_what_it_has_answered(workers: Workers) -> None:
    conductor = workers.conductor
    workers.start("a")
    workers.publish("a")
    workers.ask("a", "1", "2", "3")
    workers.wait_answered("1", "2", "3")
    workers.start("b")
    workers.publish("a", "b")  # grown
    workers.ask("b", "4")
    workers.wait_answered("4")

    def told() -> dict[str, Any]:
        by_worker: dict[str, Any] = {}
        for report in conductor.reports:
            by_worker |= report.get("requests", {})
        return {name: counts["answered"] for name, counts in by_worker.items()}

    conductor.wait_until(
        lambda: sorted(told().values()) == [1, 3] and len(told()) == 2, WITHIN_S, "both say what they did"
    )
    of_first = [report for report in conductor.reports if "points" in report]
    assert of_first[-1]["max_local"] == 4
    assert len(of_first) < len(conductor.reports), "only the first says how long batches take"
    workers.publish("b")  # shrunk to the other
    assert conductor.wait_ended("a", WITHIN_S) == 0
    workers.ask("b", "5")
    workers.wait_answered("5")


@pytest.mark.slow
def test_one_that_is_told_to_leave_answers_what_waits_first(workers: Workers) -> None:
    workers.start("a")
    workers.publish("a")
    workers.hold(True)
    workers.ask("a", "1", "2", "3")
    workers.wait_taken("a")
    workers.conductor.leave(until_s=60.0)
    workers.hold(False)
    workers.wait_answered("1", "2", "3")
    assert workers.conductor.wait_ended("a", WITHIN_S) == 143


@pytest.mark.slow
def test_it_serves_on_while_the_service_is_away(workers: Workers) -> None:
    workers.start("a")
    workers.publish("a")
    workers.conductor.is_away = True
    workers.ask("a", "1")
    workers.wait_answered("1")
    workers.conductor.is_away = False
    workers.conductor.wait_until(
        lambda: any(report.get("requests") for report in workers.conductor.reports), WITHIN_S, "it tells"
    )
