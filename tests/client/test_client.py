"""What the client makes of answers, and of a service that goes away, without one."""

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from stretto.client import Client, Refused, ServiceError
from stretto.model import InputError

pytestmark = pytest.mark.processes

EVENTS = {"content-type": "text/event-stream"}
Answer = Callable[[httpx.Request], httpx.Response]


@pytest.fixture
def client_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Answer], Client]]:
    """A client whose service is a function; it waits for nobody."""
    monkeypatch.setattr("stretto.client.waiting.time.sleep", lambda seconds: None)
    made: list[Client] = []

    def make(answer: Answer) -> Client:
        client = Client("http://service")
        client.http.close()
        client.http = httpx.Client(base_url="http://service", transport=httpx.MockTransport(answer))
        made.append(client)
        return client

    yield make
    for one in made:
        one.http.close()


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        pytest.param(422, InputError, id="wrong input"),
        pytest.param(404, InputError, id="no such thing"),
        pytest.param(409, InputError, id="too late"),
        pytest.param(401, Refused, id="no token"),
        pytest.param(403, Refused, id="a lesser role"),
        pytest.param(503, ServiceError, id="a service that cannot"),
    ],
)
def test_a_problem_becomes_an_error_with_its_detail(
    status: int, kind: type[Exception], client_of: Callable[[Answer], Client]
) -> None:
    client = client_of(lambda request: httpx.Response(status, json={"detail": "gpus must be >= 1"}))
    with pytest.raises(kind, match="gpus must be >= 1"):
        client.describe("1")


def test_a_name_cannot_leave_its_place_in_the_path() -> None:
    with Client("http://service") as client, pytest.raises(InputError, match=r"\.\./tokens"):
        client.describe("../tokens")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a?b", "a\udcff"])
def test_what_can_be_no_name_is_refused_in_a_line(name: str) -> None:
    with Client("http://service") as client, pytest.raises(InputError, match="expected "):
        client.describe(name)


def test_what_can_be_no_name_of_a_lender_is_not_called_a_job_or_a_node() -> None:
    with Client("http://service") as client, pytest.raises(InputError, match=r"^expected a name, .* 'a/b'$"):
        client.delete_lender("a/b")


def test_a_name_is_one_part_of_the_path_whatever_is_in_it(client_of: Callable[[Answer], Client]) -> None:
    asked = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.raw_path)
        return httpx.Response(200, json={})

    client_of(answer).describe("%2e%2e größer")
    assert asked == [b"/api/v1/jobs/%252e%252e%20gr%C3%B6%C3%9Fer"]


def test_what_no_header_can_hold_is_refused_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="--token: expected letters") as error:
        Client("http://service", "ключ")
    assert "ключ" not in str(error.value)
    with Client("http://service") as client, pytest.raises(InputError, match="--key must be"):
        client.submit("run: x", "ключ")
    monkeypatch.setenv("USER", "юлия")
    with Client("http://service", None) as client:
        assert client.http.headers["x-stretto-user"] == f"uid-{os.getuid()}"


def test_who_follows_a_log_is_told_its_rest_after_a_restart_of_the_service(
    client_of: Callable[[Answer], Client],
) -> None:
    away = [True, True]

    def answer(request: httpx.Request) -> httpx.Response:
        path, attempt = request.url.path, 1 if len(away) else 2
        if path.endswith("/log"):
            text = "one" if request.url.params["attempt"] == "1" else "two"
            rest = text[int(request.url.params["offset"]) :]
            return httpx.Response(200, json={"text": rest, "next_offset": 3, "complete": True})
        if not path.endswith("/wait") and told and away:
            away.pop()
            raise httpx.ConnectError("refused")
        ended = 1.0 if attempt == 2 else None
        return httpx.Response(200, json={"id": "7", "attempt": attempt, "ended_s": ended})

    told: list[str] = []
    for piece in client_of(answer).log("mine", follow=True):
        told = [*told, piece]
    assert told == ["one", "two"]


def test_a_job_file_is_sent_with_its_name_and_where_it_was_submitted(
    client_of: Callable[[Answer], Client], tmp_path: Path
) -> None:
    sent = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(json.loads(request.content))
        return httpx.Response(201, json={})

    file = tmp_path / "train.yaml"
    file.write_text("run: x\n...\n")
    client = client_of(answer)
    client.submit(file, workdir="/here")
    client.dry_run("run: y")
    assert sent == [
        {"text": "run: x\n...\n", "name": str(file), "workdir": "/here"},
        {"text": "run: y", "name": "job file"},
    ]
    file.write_bytes(b" " * (1 << 20) + b"x")
    with pytest.raises(InputError, match=f"train.yaml: expected a job file of at most {1 << 20} bytes"):
        client.submit(file)
    file.write_bytes(b"run: \xff")
    with pytest.raises(InputError, match=r"train.yaml: expected UTF-8 text: .* at byte 5"):
        client.submit(file)


def test_many_job_files_go_in_few_requests_each_with_a_key_of_its_own(
    client_of: Callable[[Answer], Client], tmp_path: Path
) -> None:
    sent = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append((request.url.path, json.loads(request.content)["jobs"]))
        ids = [{"id": each["text"].removeprefix("run: ")} for each in sent[-1][1]]
        return httpx.Response(200, json={"jobs": ids})

    client, texts = client_of(answer), [f"run: {number}" for number in range(501)]
    assert [one["id"] for one in client.submit_all(texts, key="k")] == [str(number) for number in range(501)]
    assert [(path, len(jobs)) for path, jobs in sent] == [
        ("/api/v1/jobs/batch", 500),
        ("/api/v1/jobs/batch", 1),
    ]
    assert sent[1][1] == [{"text": "run: 500", "name": "job file", "key": "k.500"}]
    sent.clear()
    client.submit_all([f"run: {'x' * 400_000}"] * 4)
    assert [len(jobs) for _, jobs in sent] == [2, 2]
    sent.clear()
    with pytest.raises(InputError, match="cannot be read"):
        client.submit_all(["run: x", tmp_path / "none.yaml"])
    assert not sent


def test_jobs_come_page_after_page(client_of: Callable[[Answer], Client]) -> None:
    pages = {"": (["1", "2"], "2"), "2": (["3"], None)}

    def answer(request: httpx.Request) -> httpx.Response:
        ids, after = pages[request.url.params["after"]]
        return httpx.Response(200, json={"jobs": [{"id": one} for one in ids], "next": after})

    assert [one["id"] for one in client_of(answer).jobs()] == ["1", "2", "3"]


def test_who_waits_waits_also_for_the_service(client_of: Callable[[Answer], Client]) -> None:
    asked = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        if len(asked) < 4:
            raise httpx.ConnectError("refused")
        return httpx.Response(200, json={"id": "1", "ended_s": 5.0})

    assert client_of(answer).wait("1")["ended_s"] == 5.0
    assert len(asked) == 4


def test_a_stream_of_events_that_breaks_or_ends_goes_on_where_it_was_until_nothing_follows(
    client_of: Callable[[Answer], Client],
) -> None:
    def text(*numbers: int) -> bytes:
        return "".join(
            f"id: {one}\nevent: Held\ndata: {json.dumps({'kind': 'Held'})}\n\n" for one in numbers
        ).encode()

    def broken() -> Iterator[bytes]:
        yield text(1, 2)
        raise httpx.ReadError("gone")

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.params["after"] == "0":
            return httpx.Response(200, headers=EVENTS, content=broken())
        if request.url.params["follow"] == "true":
            assert request.url.params["after"] == request.headers["last-event-id"]
        if request.url.params["after"] == "2":
            return httpx.Response(200, headers=EVENTS, content=text(3))  # and the service ends
        if request.url.params["after"] == "3":
            return httpx.Response(200, headers=EVENTS, content=text(4))  # and so does the job
        return httpx.Response(204)

    assert [one["seq"] for one in client_of(answer).events("7", follow=True)] == [1, 2, 3, 4]
    assert [one["seq"] for one in client_of(answer).events("7", after=2)] == [3]


def test_url_and_token_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRETTO_URL", "http://there:1")
    monkeypatch.setenv("STRETTO_TOKEN", "stretto_x")
    with Client() as client:
        assert client.url == "http://there:1"
        assert client.http.headers["authorization"] == "Bearer stretto_x"
    with pytest.raises(InputError, match="nowhere"):
        Client("nowhere")


def test_a_token_of_the_environment_is_for_whoever_names_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRETTO_TOKEN", "other")
    with Client("http://service") as client:
        assert client.http.headers["authorization"] == "Bearer other"
    with Client("http://service", None) as client:
        assert "authorization" not in client.http.headers


def test_a_token_comes_from_the_file_that_the_environment_names_unless_it_is_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(" stretto_y\n")
    monkeypatch.delenv("STRETTO_TOKEN", raising=False)
    monkeypatch.setenv("STRETTO_TOKEN_FILE", str(file))
    with Client("http://service") as client:
        assert client.http.headers["authorization"] == "Bearer stretto_y"
    with Client("http://service", "mine") as client:
        assert client.http.headers["authorization"] == "Bearer mine"
    for text in ("", "two words", "x" * 2_000, "\u0448"):
        file.write_text(text)
        with pytest.raises(InputError, match=r"STRETTO_TOKEN_FILE .*: expected "):
            Client("http://service")


class Clock:
    """A time that only passes while somebody sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        monkeypatch.setattr(time, "sleep", self.sleep)
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def away_until(clock: Clock, until_s: float) -> Answer:
    def answer(request: httpx.Request) -> httpx.Response:
        if clock.now_s < until_s:
            raise httpx.ConnectError("refused")
        if request.url.path.endswith("/events"):
            return httpx.Response(204)
        return httpx.Response(200, json={"id": "1", "ended_s": 5.0})

    return answer


@pytest.mark.parametrize("what", ["wait", "events"])
def test_an_outage_of_minutes_is_sat_out_and_said_in_two_lines(
    what: str, client_of: Callable[[Answer], Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    said: list[str] = []
    client = client_of(away_until(clock, 1500.0))
    client.say = said.append
    found = client.wait("1") if what == "wait" else list(client.events("1", follow=True))
    assert found == ({"id": "1", "ended_s": 5.0} if what == "wait" else [])
    assert 1500 <= clock.now_s < 1510
    assert len(said) == 2
    assert said[0].startswith("no service answers at http://service: refused")
    assert said[0].endswith("; waiting for it, at most 600 s (STRETTO_PATIENCE_S)")
    assert said[1] == "the service answers again"


def test_patience_ends_when_it_was_said_to_end(
    client_of: Callable[[Answer], Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    for patience_s in (0.0, 30.0):
        began_s = clock.now_s
        client = client_of(away_until(clock, 1e9))
        client.patience_s = patience_s
        with pytest.raises(ServiceError, match="no service answers"):
            client.wait("1")
        assert clock.now_s <= began_s + patience_s
        assert clock.now_s >= began_s + patience_s - 5.0


@pytest.mark.parametrize("given", ["-1", "soon", "inf", "nan"])
def test_patience_is_a_number_of_seconds(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRETTO_PATIENCE_S", given)
    with pytest.raises(InputError, match=f"STRETTO_PATIENCE_S={given}: expected seconds"):
        Client("http://service")
