"""Several addresses of one service: which one is asked, and what is never done twice."""

from collections.abc import Callable

import httpx
import pytest

from stretto.client import Client, ServiceError
from stretto.client.failover import Failover
from stretto.client.retry import STANDS_BY
from stretto.model import InputError
from stretto.service.http import standby

pytestmark = pytest.mark.processes

FIRST, SECOND = "http://first:1", "http://second:2"
Answer = Callable[[httpx.Request], httpx.Response]


def client_of(answer: Answer, monkeypatch: pytest.MonkeyPatch) -> Client:
    """A client of two addresses, behind which is a function."""
    monkeypatch.setattr("stretto.client.waiting.time.sleep", lambda seconds: None)
    client = Client(f"{FIRST},{SECOND}", patience_s=5.0)
    transport = Failover(client.addresses, httpx.MockTransport(answer))
    client.http = httpx.Client(base_url=FIRST, transport=transport)
    return client


def stands_by() -> httpx.Response:
    return httpx.Response(503, headers={STANDS_BY: "yes"}, json={"detail": "stands by"})


def test_the_header_is_that_of_a_standby() -> None:
    assert standby.STANDS_BY == STANDS_BY


def test_a_standby_is_passed_over_and_the_leader_asked_first_from_then_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(
            f"{request.method} {request.url.host} {request.headers['host']} {request.content.decode()}"
        )
        if request.url.host == "first":
            return stands_by()
        return httpx.Response(200, json={"id": "1"})

    with client_of(answer, monkeypatch) as client:
        assert client.submit("{run: date}", key="k")["id"] == "1"
        client.describe("1")
    body = '{"text":"{run: date}","name":"job file"}'
    assert [line.replace('": "', '":"').replace('", "', '","') for line in asked] == [
        f"POST first first:1 {body}",
        f"POST second second:2 {body}",
        "GET second second:2 ",
    ]


def test_where_nobody_listens_the_next_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.host == "first":
            raise httpx.ConnectError("refused")
        return httpx.Response(200, json={"id": "1"})

    with client_of(answer, monkeypatch) as client:
        assert client.change("1", "cancel")["id"] == "1"


def test_what_may_have_been_done_is_not_asked_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(f"{request.method} {request.url.host}")
        if request.url.host == "first":
            raise httpx.ReadError("gone")
        return httpx.Response(200, json={"id": "1"})

    with client_of(answer, monkeypatch) as client:
        with pytest.raises(ServiceError, match="gone"):
            client.change("1", "requeue")
        assert asked == ["POST first"]
        client.describe("1")
        client.submit("{run: date}")  # has a key of its own
    assert asked[1:] == ["GET first", "GET second", "POST second"]


def test_a_submission_waits_for_one_that_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        keys.append(request.headers["idempotency-key"])
        if len(keys) < 7:
            return stands_by()
        return httpx.Response(200, json={"id": "1"})

    with client_of(answer, monkeypatch) as client:
        assert client.submit("{run: date}")["id"] == "1"
    assert len(set(keys)) == 1


def test_if_none_answers_the_error_names_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with (
        client_of(answer, monkeypatch) as client,
        pytest.raises(ServiceError, match=f"no service answers at {FIRST},{SECOND}: refused"),
    ):
        client.change("1", "cancel")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://a:1,b:2", "--url b:2: expected the address of a service"),
        ("http://a:1,", "--url : expected the address of a service"),
        ("http://a:1/x,http://b:2", "--url http://a:1/x: expected no path"),
        ("http://a:1,http://b:port", "--url http://b:port: expected the address of a service"),
    ],
)
def test_addresses_that_are_none_are_refused_in_a_line(url: str, said: str) -> None:
    with pytest.raises(InputError) as refused:
        Client(url)
    assert said in str(refused.value)
