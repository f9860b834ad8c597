"""Pages of the dashboard, the session that a token becomes, and the stream that fills the pages."""

import asyncio
import contextlib
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.service.http.rig import Rig, a_rig, play, token_of

from stretto.service.http.auth import Caller, Role
from stretto.service.http.overview import Overview
from stretto.service.http.routes.dashboard import IMPORTS, STATIC
from stretto.service.http.sessions import COOKIE, LASTS_S, session_for
from stretto.service.http.sse import Entry, Feed

pytestmark = [pytest.mark.sqlite, pytest.mark.sockets]

ORIGIN = {"origin": "http://127.0.0.1", "sec-fetch-site": "same-origin"}
ELSEWHERE = {"origin": "http://evil.example", "sec-fetch-site": "cross-site"}
ARRAY = "{run: 'true', name: swept, array: 1-3}"
PATHS = ("/", "/queue", "/people", "/decisions", "/login", "/jobs/12")


def played(path: Path, story: Callable[[Rig], Awaitable[None]]) -> None:
    """A story over a service of its own."""

    async def run() -> None:
        async with a_rig(path) as rig:
            await story(rig)

    play(run)


@contextlib.asynccontextmanager
async def logged_in(rig: Rig, person: str) -> AsyncIterator[httpx.AsyncClient]:
    """A browser of a person: it has the cookie, and no header with a token."""
    async with rig.client() as browser:
        answer = await browser.post("/login", json={"token": token_of(person)}, headers=ORIGIN)
        assert answer.status_code == HTTPStatus.OK, answer.text
        yield browser


async def first_events(rig: Rig, client: httpx.AsyncClient, count: int, then: Any = None) -> list[Any]:
    """(kind, body) of the first events of the overview; `then` happens after the first."""
    async with rig.listening() as (host, port):
        cookies = {COOKIE: client.cookies[COOKIE]}
        async with (
            httpx.AsyncClient(base_url=f"http://{host}:{port}", cookies=cookies, timeout=60) as browser,
            browser.stream("GET", "/api/v1/overview?follow=true") as answer,
        ):
            assert answer.status_code == HTTPStatus.OK
            events, kind = [], ""
            async for line in answer.aiter_lines():
                if line.startswith("event: "):
                    kind = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    events.append((kind, json.loads(line.removeprefix("data: "))))
                    if len(events) == count:
                        return events
                    if then is not None:
                        await then()
                        then = None
    raise AssertionError("the stream ended")


def test_pages_need_no_token_and_show_nothing_by_themselves(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        name = await rig.submit("ada", text="run: 'true'\nname: secret-name")
        async with rig.client() as stranger:
            for path in (*PATHS, f"/jobs/{name}"):
                answer = await stranger.get(path)
                assert answer.status_code == HTTPStatus.OK
                assert "secret-name" not in answer.text
                policy = answer.headers["content-security-policy"]
                assert "unsafe" not in policy
                assert "default-src 'none'" in policy
                assert "frame-ancestors 'none'" in policy
            for path in ("/api/v1/session", "/api/v1/overview", "/api/v1/jobs"):
                assert (await stranger.get(path)).status_code == HTTPStatus.UNAUTHORIZED

    played(tmp_path, story)


def test_everything_that_a_page_loads_is_here(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        async with rig.client() as stranger:
            text = (await stranger.get("/")).text
            files = {*IMPORTS.values(), *re.findall(r'(?:src|href)="(/[^"]+)"', text)}
            seen: set[str] = set()
            while files:
                file = files.pop()
                seen.add(file)
                answer = await stranger.get(file)
                assert answer.status_code == HTTPStatus.OK, file
                assert answer.headers["content-type"].partition(";")[0] in (
                    "text/javascript",
                    "text/css",
                    "image/svg+xml",
                )
                again = await stranger.get(file, headers={"if-none-match": answer.headers["etag"]})
                assert (again.status_code, again.content) == (HTTPStatus.NOT_MODIFIED, b"")
                imported = set(re.findall(r'from\s*"([^"]+)"', answer.text))
                files |= {f"/static/{each[2:]}" for each in imported if each.startswith("./")} - seen
                assert all(each.startswith("./") or each in IMPORTS for each in imported), file
                assert not re.search(r"https?://(?!www\.w3\.org/)", answer.text), f"{file} leaves the service"
            assert len(seen) > 10

    played(tmp_path, story)


def test_vendored_files_have_their_licences_beside_them() -> None:
    vendored = {path.name for path in Path(str(STATIC)).joinpath("vendor").iterdir()}
    assert {"LICENSE.preact", "LICENSE.htm", "LICENSE.signals-core"} <= vendored


@pytest.mark.parametrize(
    "name",
    [
        *("../auth.py", "..%2fauth.py", "vendor", ".hidden", "none.js", "vendor/../../auth.py"),
        *("vendor/LICENSE.preact", "a%00.js", "%00", "a" * 5_000, "a/" * 5_000),
    ],
)
def test_no_other_file_is_shown(tmp_path: Path, name: str) -> None:
    async def story(rig: Rig) -> None:
        async with rig.client() as stranger:
            answer = await stranger.get(f"/static/{name}")
            assert answer.status_code in (HTTPStatus.NOT_FOUND, HTTPStatus.UNAUTHORIZED)

    played(tmp_path, story)


def test_a_token_becomes_a_session_that_no_script_reads_and_no_other_site_uses(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        name = await rig.submit("ada")
        async with logged_in(rig, "ada") as browser:
            assert token_of("ada") not in browser.cookies[COOKIE]
            who = (await browser.get("/api/v1/session")).json()
            assert (who["user"], who["role"], who["is_open"]) == ("ada", "user", False)
            held = await browser.post(f"/api/v1/jobs/{name}/hold", headers=ELSEWHERE)
            assert held.status_code == HTTPStatus.FORBIDDEN
            held = await browser.post(f"/api/v1/jobs/{name}/hold", headers={"origin": "http://evil.example"})
            assert held.status_code == HTTPStatus.FORBIDDEN
            held = await browser.post(f"/api/v1/jobs/{name}/hold")
            assert held.status_code == HTTPStatus.FORBIDDEN, "neither header: not a page of ours"
            held = await browser.post(f"/api/v1/jobs/{name}/hold", headers=ORIGIN)
            assert held.status_code == HTTPStatus.OK
            await browser.post("/logout", headers=ORIGIN)
            assert (await browser.get("/api/v1/session")).status_code == HTTPStatus.UNAUTHORIZED

    played(tmp_path, story)


def test_the_cookie_is_kept_from_scripts_and_other_sites(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        async with rig.client() as browser:
            body = {"token": token_of("olga")}
            plain = await browser.post("/login", json=body, headers=ORIGIN)
            given = plain.headers["set-cookie"]
            assert "HttpOnly" in given
            assert "SameSite=Strict" in given
            assert "Secure" not in given
            secure = {"origin": "https://127.0.0.1", "sec-fetch-site": "same-origin"}
            assert "Secure" in (await browser.post("/login", json=body, headers=secure)).headers["set-cookie"]

    played(tmp_path, story)


def test_a_login_with_an_unknown_token_or_from_another_site_is_refused(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        async with rig.client() as browser:
            wrong = await browser.post("/login", json={"token": "stretto_wrong"}, headers=ORIGIN)
            assert wrong.status_code == HTTPStatus.UNAUTHORIZED
            assert "set-cookie" not in wrong.headers
            other = await browser.post("/login", json={"token": token_of("ada")}, headers=ELSEWHERE)
            assert other.status_code == HTTPStatus.FORBIDDEN

    played(tmp_path, story)


@pytest.mark.parametrize("change", ["seal", "token", "time", "old", "nonsense"])
def test_a_session_that_was_changed_or_is_over_opens_nothing(tmp_path: Path, change: str) -> None:
    async def story(rig: Rig) -> None:
        key = rig.service.context.key
        ada = next(token for token in rig.service.state.tokens.values() if token.user == "ada")
        root = next(token for token in rig.service.state.tokens.values() if token.user == "root")
        sha256, until_s, seal = session_for(ada.sha256, key, time.time()).split(".")
        value = {
            "seal": f"{sha256}.{until_s}.{'0' * len(seal)}",
            "token": f"{root.sha256}.{until_s}.{seal}",
            "time": f"{sha256}.{int(until_s) + 60}.{seal}",
            "old": session_for(ada.sha256, key, time.time() - LASTS_S - 1),
            "nonsense": "…".encode().hex(),
        }[change]
        async with rig.client() as browser:
            answer = await browser.get("/api/v1/session", headers={"cookie": f"{COOKIE}={value}"})
            assert answer.status_code == HTTPStatus.UNAUTHORIZED

    played(tmp_path, story)


def test_a_session_ends_with_its_token(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        async with logged_in(rig, "ada") as browser, rig.client("root") as root:
            listed = (await root.get("/api/v1/tokens")).json()["tokens"]
            (name,) = [token["name"] for token in listed if token["user"] == "ada"]
            assert (await root.delete(f"/api/v1/tokens/{name}")).status_code < 300
            assert (await browser.get("/api/v1/session")).status_code == HTTPStatus.UNAUTHORIZED

    played(tmp_path, story)


def test_the_stream_has_everything_first_and_then_what_changes(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        name = await rig.submit("ada")
        async with logged_in(rig, "ada") as browser:

            async def submit() -> None:
                await rig.submit("ada", text="run: 'true'\nname: later")

            (kind, whole), (then, change) = await first_events(rig, browser, 2, submit)
            assert (kind, then) == ("whole", "change")
            assert [job["id"] for job in whole["jobs"]] == [name]
            assert {node["name"] for node in whole["nodes"]} == {
                node.name for node in rig.service.state.nodes
            }
            assert "later" in {job["name"] for job in change["jobs"]}
            assert change["seq"] > whole["seq"]

    played(tmp_path, story)


def test_users_see_their_own_jobs_and_operators_all(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        await rig.submit("ada", text="run: 'true'\nname: of-ada")
        await rig.submit("bob", text="run: 'true'\nname: of-bob")
        for person, names in (("ada", {"of-ada"}), ("olga", {"of-ada", "of-bob"})):
            async with logged_in(rig, person) as browser:

                async def submit() -> None:
                    await rig.submit("bob", text="run: 'true'\nname: of-bob-2")
                    await asyncio.sleep(0)

                (_, whole), (_, change) = await first_events(rig, browser, 2, submit)
                assert {job["name"] for job in whole["jobs"]} >= names
                if person == "ada":
                    assert {job["user"] for job in (*whole["jobs"], *change["jobs"])} <= {"ada"}

    played(tmp_path, story)


def test_tasks_of_an_array_appear_as_soon_as_they_are_submitted(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        async with logged_in(rig, "ada") as browser:

            async def submit() -> None:
                async with rig.client("ada") as client:
                    answer = await client.post("/api/v1/jobs", json={"text": ARRAY})
                    assert answer.status_code == HTTPStatus.CREATED, answer.text

            _, (_, change) = await first_events(rig, browser, 2, submit)
            assert [job["id"].rpartition("_")[2] for job in change["jobs"]] == ["1", "2", "3"]

    played(tmp_path, story)


def test_a_decision_sends_the_waiting_jobs_that_have_changed_and_no_others(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        names = [await rig.submit("ada", text="run: 'true'\nhold: true") for _ in range(2)]
        overview = Overview(rig.service, Feed(rig.service.log_writer), Caller("ada", Role.USER, None))
        assert [job["id"] for job in (await overview.whole())["jobs"]] == names
        decided = Entry(9, 0.0, "Decided", "", {"actions": []})
        assert (await overview.changed([decided]))["jobs"] == []
        async with rig.client("ada") as ada:
            answer = await ada.post(f"/api/v1/jobs/{names[1]}/priority", json={"priority": -3})
            assert answer.status_code == HTTPStatus.OK, answer.text
        assert [job["id"] for job in (await overview.changed([decided]))["jobs"]] == names[1:]

    played(tmp_path, story)
