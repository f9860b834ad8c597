"""Webhooks tell whoever a job file names what becomes of the job, and hold up nobody else."""

import asyncio
import json
import re
import time
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.service.http.rig import Rig, a_rig, play

from stretto.model import InputError
from stretto.service.eventlog.writer import fold
from stretto.service.state import outbox
from stretto.service.state.state import State
from stretto.service.webhooks import EACH, Secrets, Targets, in_text, secrets_in

pytestmark = [pytest.mark.sockets, pytest.mark.sqlite]


@dataclass
class Listener:
    """Somebody who is to be told. statuses: of the next answers; then 200."""

    url: str = ""
    statuses: list[int] = field(default_factory=list)
    heard: list[tuple[str, dict[str, Any]]] = field(default_factory=list)  # (path, body)
    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list)  # (headers, body)
    hosts: list[str] = field(default_factory=list)  # as asked for

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(line for line in head.splitlines() if line.lower().startswith("content-length"))
        sent = await reader.readexactly(int(length.partition(":")[2]))
        lines = [line.partition(":") for line in head.splitlines()[1:] if line]
        self.requests.append(({name.lower(): value.strip() for name, _, value in lines}, sent))
        body = json.loads(sent)
        assert head.startswith("POST ")
        hosts = [line for line in head.splitlines() if line.lower().startswith("host:")]
        self.hosts += [line.partition(":")[2].strip() for line in hosts]
        self.heard.append((head.split()[1], body))
        status = self.statuses.pop(0) if self.statuses else 200
        where = "location: /elsewhere\r\n" if status == 302 else ""
        writer.write(f"HTTP/1.1 {status} x\r\n{where}content-length: 0\r\nconnection: close\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    def moments(self, path: str) -> list[str]:
        return [body["moment"] for where, body in self.heard if where == path]


@asynccontextmanager
async def listening() -> AsyncIterator[Listener]:
    listener = Listener()
    server = await asyncio.start_server(listener.answer, "127.0.0.1", 0)
    async with server:
        listener.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield listener


@dataclass
class Hole:
    """Takes connections and never answers."""

    url: str = ""
    open: int = 0  # connections


@asynccontextmanager
async def a_black_hole() -> AsyncIterator[Hole]:
    hole, over = Hole(), asyncio.Event()

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hole.open += 1
        await over.wait()
        writer.close()

    server = await asyncio.start_server(swallow, "127.0.0.1", 0)
    async with server:
        hole.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        try:
            yield hole
        finally:
            over.set()


@asynccontextmanager
async def telling(path: Path, *pauses_s: float) -> AsyncIterator[Rig]:
    async with a_rig(path) as rig:
        webhooks = rig.service.webhooks
        webhooks.pauses_s = pauses_s
        rig.service.targets = webhooks.targets = Targets.of(["127.0.0.0/8"])
        telling = asyncio.create_task(webhooks.run())
        try:
            yield rig
        finally:
            telling.cancel()
            with suppress(asyncio.CancelledError):
                await telling


def test_everybody_is_told_of_what_they_asked_for_and_of_nothing_else(tmp_path: Path) -> None:
    async def story() -> None:
        async with listening() as listener, telling(tmp_path) as rig:
            url = listener.url
            every = "[started, preempted, completed, failed, cancelled, timeout]"
            text = f"run: x\nname: mine\nnotify: [{url}/ends, {{url: '{url}/all', on: {every}}}]"
            job = await rig.submit("ada", text=text)
            await rig.until(lambda: listener.moments("/all") == ["started"])
            await rig.backend.finish(f"{job}.1.0", 143)  # somebody stops it
            await rig.until(lambda: listener.moments("/all") == ["started", "preempted", "started"])
            await rig.backend.finish(f"{job}.2.0", 0)
            await rig.until(lambda: "completed" in listener.moments("/all") and listener.moments("/ends"))
            assert listener.moments("/all") == ["started", "preempted", "started", "completed"]
            assert listener.moments("/ends") == ["completed"]
            body = listener.heard[-1][1]
            assert (body["job"], body["name"], body["user"], body["status"]) == (job, "mine", "ada", 0)
            assert body["attempt"] == 2

    play(story)


@pytest.mark.parametrize("status", [500, 302])
def test_who_does_not_answer_well_is_told_again_and_led_nowhere(tmp_path: Path, status: int) -> None:
    async def story() -> None:
        async with listening() as listener, telling(tmp_path, 0.0, 0.0) as rig:
            listener.statuses = [status]
            job = await rig.submit("ada", text=f"run: x\nnotify: {listener.url}/ends")
            await rig.until(lambda: rig.backend.started)
            await rig.backend.finish(f"{job}.1.0", 7)
            await rig.until(lambda: len(listener.heard) == 2)
            assert listener.moments("/ends") == ["failed", "failed"]

    play(story)


def test_an_address_where_nobody_is_holds_up_nobody(tmp_path: Path) -> None:
    async def story() -> None:
        async with listening() as listener, telling(tmp_path) as rig:
            nobody = "'http://127.0.0.1:1/', 'http://nobody.invalid/'"
            job = await rig.submit("ada", text=f"run: x\nnotify: [{nobody}, '{listener.url}/ends']")
            await rig.until(lambda: rig.backend.started)
            await rig.backend.finish(f"{job}.1.0", 0)
            await rig.until(lambda: listener.moments("/ends") == ["completed"])

    play(story)


def test_a_request_goes_to_the_address_that_was_checked_under_the_name_that_was_given(tmp_path: Path) -> None:
    async def story() -> None:
        async with listening() as listener, telling(tmp_path) as rig:
            rig.service.targets = rig.service.webhooks.targets = Targets.of(["localhost"])
            place = listener.url.rpartition("/")[2].replace("127.0.0.1", "localhost")
            job = await rig.submit("ada", text=f"run: x\nnotify: http://{place}/ends")
            await rig.until(lambda: rig.backend.started)
            await rig.backend.finish(f"{job}.1.0", 0)
            await rig.until(lambda: listener.heard)
            assert listener.hosts == [place]

    play(story)


def test_what_leads_elsewhere_by_the_time_of_the_request_gets_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with listening() as listener, telling(tmp_path) as rig:
            job = await rig.submit("ada", text=f"run: x\nnotify: {listener.url}/ends")
            rig.service.webhooks.targets = Targets()  # loopback is not allowed any more
            await rig.until(lambda: rig.backend.started)
            await rig.backend.finish(f"{job}.1.0", 0)
            await rig.until(lambda: "its webhook cannot be delivered" in caplog.text)
            assert not listener.heard

    play(story)


def test_slow_targets_of_one_owner_hold_up_no_other(tmp_path: Path) -> None:
    async def story() -> None:
        async with listening() as listener, telling(tmp_path) as rig, a_black_hole() as hole:
            moments = "[cancelled]"
            text = f"run: x\nhold: true\narray: 0-199\nnotify: [{{url: '{hole.url}', on: {moments}}}]"
            slow = (await rig.submit("ada", text=text)).split("_")[0]
            async with rig.client("ada") as ada:
                assert (await ada.post(f"/api/v1/jobs/{slow}/cancel")).status_code == 200
            await rig.until(lambda: hole.open)
            job = await rig.submit("bob", text=f"run: x\nnotify: {listener.url}/ends")
            await rig.until(lambda: rig.backend.started)
            await rig.backend.finish(f"{job}.1.0", 0)
            await rig.until(lambda: listener.moments("/ends") == ["completed"])
            assert 1 <= hole.open <= EACH  # its own wait for their turn, and none has been given up
            assert rig.service.state.outbox.pending["ada"] == 200

    play(story)


def test_the_queue_of_an_owner_is_bounded_and_drops_no_other_owners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "MOST_PENDING", 20)

    async def story() -> None:
        async with listening() as listener, telling(tmp_path) as rig, a_black_hole() as hole:
            text = f"run: x\nhold: true\narray: 0-99\nnotify: [{{url: '{hole.url}', on: [cancelled]}}]"
            slow = (await rig.submit("ada", text=text)).split("_")[0]
            async with rig.client("ada") as ada:
                assert (await ada.post(f"/api/v1/jobs/{slow}/cancel")).status_code == 200
            await rig.until(lambda: rig.service.state.outbox.pending["ada"])
            assert rig.service.state.outbox.pending["ada"] == 20
            job = await rig.submit("bob", text=f"run: x\nnotify: {listener.url}/ends")
            await rig.until(lambda: rig.backend.started)
            await rig.backend.finish(f"{job}.1.0", 0)
            await rig.until(lambda: listener.moments("/ends") == ["completed"])

    play(story)


ROOT = Path(__file__).parents[3]
MASTERS = [bytes([number]) * 32 for number in (1, 2, 3)]


def is_genuine(*given: Any) -> bool:
    """As the page shows it to receivers."""
    page = (ROOT / "docs" / "jobs.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(import base64.*?)```", page, flags=re.S)
    meant: dict[str, Any] = {}
    exec(code, meant)
    return bool(meant["is_genuine"](*given))


def test_a_receiver_takes_what_is_signed_for_its_owner_and_nothing_else(tmp_path: Path) -> None:
    async def story() -> None:
        async with listening() as listener, telling(tmp_path) as rig:
            job = await rig.submit("ada", text=f"run: x\nnotify: {listener.url}/ends")
            await rig.until(lambda: rig.backend.started)
            await rig.backend.finish(f"{job}.1.0", 0)
            await rig.until(lambda: listener.requests)
            ((headers, body),) = listener.requests
            async with rig.client("ada") as ada, rig.client("bob") as bob:
                own = (await ada.get("/api/v1/webhook-secrets")).json()["secrets"]
                others = (await bob.get("/api/v1/webhook-secrets")).json()["secrets"]
            assert is_genuine(headers, body, own)
            assert not is_genuine(headers, body, others)
            assert not is_genuine(headers, body + b" ", own)
            for name, other in (
                ("webhook-id", "9.0"),
                ("webhook-timestamp", str(int(headers["webhook-timestamp"]) - 1)),
            ):
                assert not is_genuine({**headers, name: other}, body, own), name
            old = str(int(time.time()) - 301)  # signed as it should be, and sent once more
            again = rig.service.secrets.headers("ada", headers["webhook-id"], body, float(old))
            assert not is_genuine(again, body, own)

    play(story)


def test_two_secrets_sign_while_one_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "secrets"

    def write(*masters: bytes) -> None:
        file.write_text("".join(f"{b64encode(master).decode()}\n" for master in masters))

    write(MASTERS[0])
    secrets = Secrets(b"", file)
    (old,) = [in_text(secret) for secret in secrets.of("ada")]
    write(MASTERS[1], MASTERS[0])
    new = in_text(secrets.of("ada")[0])
    both = secrets.headers("ada", "1.0", b"{}", time.time())
    assert is_genuine(both, b"{}", [old])
    assert is_genuine(both, b"{}", [new])
    write(MASTERS[1])
    last = secrets.headers("ada", "1.0", b"{}", time.time())
    assert is_genuine(last, b"{}", [new])
    assert not is_genuine(last, b"{}", [old])
    file.write_text("")  # a slip: what was there is kept
    assert secrets.of("ada") == [*Secrets(MASTERS[1]).of("ada")]


@pytest.mark.parametrize(
    "text", ["", "c2hvcnQ=\n", "not base64 at all!\n", "\n".join(["QUFB" * 10] * 3), f"{'QUFB' * 30}\n"]
)
def test_a_file_of_secrets_that_makes_no_sense_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "secrets"
    file.write_text(text)
    with pytest.raises(
        InputError, match=r"--webhook-secret-file .*: expected one line or two, each of 24 to 64"
    ):
        secrets_in(file)
    with pytest.raises(InputError, match="none: cannot be read: No such file"):
        secrets_in(tmp_path / "none")


def test_what_was_not_delivered_is_delivered_after_a_restart_with_the_same_id(tmp_path: Path) -> None:
    async def story() -> None:
        async with listening() as listener:
            async with telling(tmp_path, 600.0) as rig:
                listener.statuses = [503]
                job = await rig.submit("ada", text=f"run: x\nnotify: {listener.url}/ends")
                await rig.until(lambda: rig.backend.started)
                await rig.backend.finish(f"{job}.1.0", 0)
                await rig.until(lambda: listener.requests)
                log = list(rig.store.read())
            again = State()
            for recorded in log:
                fold(again, recorded)
            assert list(again.outbox.deliveries)
            async with telling(tmp_path / "second") as rig:
                rig.service.state.outbox.deliveries |= again.outbox.deliveries
                rig.service.webhooks.heard(())
                await rig.until(lambda: len(listener.requests) == 2)
                first, second = (headers["webhook-id"] for headers, _ in listener.requests)
                assert first == second
                await rig.until(lambda: not rig.service.state.outbox.deliveries)

    play(story)
