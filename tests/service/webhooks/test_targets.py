"""Webhooks go to public addresses, to what the operator allows, and never to the service itself."""

import asyncio
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.service.http.rig import a_rig, play

from stretto.model import InputError
from stretto.service import webhooks
from stretto.service.webhooks import Targets


def check(allowed: Targets, *urls: str) -> None:
    asyncio.run(allowed.check(urls))


@pytest.mark.parametrize(
    ("url", "line"),
    [
        pytest.param("http://127.0.0.1:1/x", "127.0.0.1 is 127.0.0.1, expected a public", id="loopback"),
        pytest.param("http://localhost/", "localhost is ", id="loopback by name"),
        pytest.param("http://[::1]:1/", "::1 is ::1", id="loopback of IPv6"),
        pytest.param("http://0x7f000001:1/", "0x7f000001 is 127.0.0.1", id="loopback in other digits"),
        pytest.param("http://127.1/", "127.1 is 127.0.0.1", id="loopback cut short"),
        pytest.param("http://0.0.0.0:8700/", "0.0.0.0 is 0.0.0.0", id="any address"),
        pytest.param("http://169.254.169.254/latest/api/token", "169.254.169.254 is", id="link-local"),
        pytest.param("http://10.0.0.1/", "10.0.0.1 is", id="private"),
        pytest.param("http://100.64.0.1/", "100.64.0.1 is", id="shared between providers' customers"),
        pytest.param("http://[::ffff:10.0.0.1]/", "expected a public", id="private within IPv6"),
        pytest.param("http://[64:ff9b::a9fe:a9fe]/", "expected a public", id="link-local behind NAT64"),
        pytest.param("http://[2002:7f00:1::]/", "expected a public", id="loopback behind 6to4"),
        pytest.param("http://[fd00::1]/", "expected a public", id="private of IPv6"),
        pytest.param("http://224.0.0.1/", "expected a public", id="multicast"),
        pytest.param("https://user:pw@1.1.1.1/", "without a user and password", id="credentials"),
        pytest.param("http://[", "expected the address of a host", id="half an address"),
        pytest.param("http://1.1.1.1:65536", "expected the address of a host", id="no port"),
        pytest.param("ftp://1.1.1.1/", "expected http://HOST", id="another protocol"),
    ],
)
def test_what_only_the_service_could_reach_is_refused(url: str, line: str) -> None:
    with pytest.raises(InputError, match=r"^notify: ") as refused:
        check(Targets(), url)
    assert line in str(refused.value)


@pytest.mark.parametrize(
    ("allowed", "url"),
    [
        pytest.param([], "https://1.1.1.1/hook", id="a public address"),
        pytest.param([], "https://[2606:4700::1111]/hook", id="a public address of IPv6"),
        pytest.param([], "https://nobody.invalid/", id="a name that means nothing yet"),
        pytest.param(["10.1.0.0/16"], "http://10.1.2.3/", id="a network that is allowed"),
        pytest.param(["10.1.2.3"], "http://10.1.2.3/", id="an address that is allowed"),
        pytest.param(["10.1.2.3"], "http://[::ffff:10.1.2.3]/", id="the same within IPv6"),
        pytest.param(["LocalHost"], "http://localhost:1/", id="a host that is allowed"),
    ],
)
def test_what_is_public_or_allowed_may_be_named(allowed: Sequence[str], url: str) -> None:
    check(Targets.of(allowed), url)


@pytest.mark.sockets
def test_the_service_itself_is_never_allowed() -> None:
    own = Targets.of(["127.0.0.0/8", "::1", "stretto.example"], [8700], [("stretto.example", 443)])
    check(own, "http://127.0.0.1:8701/")
    for url in ("http://127.0.0.1:8700/", "http://127.9.9.9:8700/", "http://localhost:8700/"):
        with pytest.raises(InputError, match="is this service"):
            check(own, url)


def test_a_job_may_name_so_many() -> None:
    with pytest.raises(InputError, match="at most 16 addresses, got 17"):
        check(Targets(), *["https://1.1.1.1/"] * 17)


@pytest.mark.parametrize("word", ["", "10.0.0.0/33", "http://x", "a b"])
def test_what_is_allowed_is_checked(word: str) -> None:
    with pytest.raises(InputError, match="--notify-allow"):
        Targets.of([word])


def test_a_name_that_leads_elsewhere_later_is_refused_and_one_that_does_not_is_pinned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = ["1.1.1.1"]

    def looked_up(host: str, port: int, **more: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (found[0], port))]

    monkeypatch.setattr(socket, "getaddrinfo", looked_up)
    url, allowed = "https://hooks.example:8443/a?b=c", Targets()
    target = asyncio.run(allowed.resolve(url))
    assert target == webhooks.Target("https://1.1.1.1:8443/a?b=c", "hooks.example:8443", "hooks.example")
    found[0] = "127.0.0.1"
    with pytest.raises(InputError, match=r"hooks\.example is 127\.0\.0\.1"):
        asyncio.run(allowed.resolve(url))


@pytest.mark.sqlite
def test_a_submission_is_refused_with_one_line(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("ada") as ada:
            body = {"text": "run: x\nnotify: http://169.254.169.254/latest/api/token"}
            answer = await ada.post("/api/v1/jobs", json=body)
            assert answer.status_code == 422
            assert answer.json()["detail"].startswith("notify: 169.254.169.254 is 169.254.169.254, expected")
            assert not rig.service.state.jobs

    play(story)
