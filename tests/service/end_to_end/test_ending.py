"""A service that ends while it is asked for something: whoever asked is told to ask again, in a line."""

import signal
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from stretto.demo.own_service import until

from ..running import Running

pytestmark = [pytest.mark.processes, pytest.mark.large]

SMALL = {"text": "{name: small, run: 'true'}"}


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    running = Running(tmp_path, "--slots", "1", "--gpu-type", "cpu", "--policy", "fifo")
    try:
        running.begin()
        yield running
    finally:
        running.end()


class Asking:
    """A submission that somebody waits for, beside us."""

    def __init__(self, running: Running) -> None:
        self.answer: list[httpx.Response | Exception] = []
        self.thread = threading.Thread(target=self._ask, args=(running.url,), daemon=True)
        self.thread.start()

    def _ask(self, url: str) -> None:
        try:
            with httpx.Client(trust_env=False, timeout=60) as client:
                self.answer.append(client.post(f"{url}/api/v1/jobs", json=SMALL))
        except httpx.HTTPError as failure:
            self.answer.append(failure)

    def result(self) -> httpx.Response:
        self.thread.join(60)
        (answer,) = self.answer
        assert isinstance(answer, httpx.Response), answer
        return answer


def check_told(answer: httpx.Response) -> None:
    assert answer.status_code == 503
    assert answer.headers["content-type"] == "application/problem+json"
    assert int(answer.headers["retry-after"]) > 0
    assert answer.json()["detail"].startswith("the service ends: ")


def write_rows(running: Running) -> sqlite3.Connection:
    return sqlite3.connect(running.store, isolation_level=None, timeout=10)


def test_a_submission_that_cannot_be_written_before_the_end_is_told_to_come_again(running: Running) -> None:
    with closing(write_rows(running)) as database:
        database.execute("BEGIN IMMEDIATE")
        asking = Asking(running)
        until(lambda: _is_under_way(running), what="the submission is under way")
        assert running.process is not None
        running.process.send_signal(signal.SIGTERM)
        answer = asking.result()
        database.execute("ROLLBACK")
    check_told(answer)
    assert running.process.wait(60) == 0
    assert "Traceback" not in running.last_words()


def _is_under_way(running: Running) -> bool:
    """Whether the service is late with a write, which is that of the submission."""
    return httpx.get(f"{running.url}/readyz", trust_env=False).status_code == 503


def test_a_submission_that_can_be_written_is_written_before_the_end(running: Running) -> None:
    asking = [Asking(running) for _ in range(20)]
    assert running.process is not None
    until(lambda: any(one.answer for one in asking), what="some are answered")
    running.process.send_signal(signal.SIGTERM)
    for one in asking:
        one.thread.join(60)
    answered = [one.answer[0] for one in asking if isinstance(one.answer[0], httpx.Response)]
    assert {answer.status_code for answer in answered} <= {201, 503}
    ids = {answer.json()["id"] for answer in answered if answer.status_code == 201}
    assert running.process.wait(60) == 0
    assert "Traceback" not in running.last_words()
    assert ids <= {body["job"] for _, _, kind, body in running.log_of_all() if kind == "Submitted"}


def test_a_service_whose_log_another_one_writes_ends_in_a_line(running: Running) -> None:
    with closing(write_rows(running)) as database:
        row: Any = database.execute("select * from stretto_log order by seq desc limit 1").fetchone()
        names = [one[1] for one in database.execute("pragma table_info(stretto_log)")]
        assert names[0] == "seq"
        marks = ", ".join("?" * len(row))
        database.execute(f"insert into stretto_log values ({marks})", (row[0] + 1, *row[1:]))
    check_told(Asking(running).result())
    assert running.process is not None
    assert running.process.wait(60) == 1
    said = running.last_words().splitlines()
    assert said[-1].startswith("stretto: the log ends at ")
    assert "Traceback" not in running.last_words()
