"""Errors that somebody sees in a browser: a page of the dashboard's own; programs are told problems."""

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from pathlib import Path

import httpx
import pytest
from fastapi.routing import APIRoute
from tests.service.http.rig import Rig, a_rig, play

from stretto.service.http.problems import MEDIA_TYPE
from stretto.service.http.rate_limits import Limits
from stretto.service.http.routes.dashboard import pages
from stretto.service.http.standby import StandbyApp

pytestmark = [pytest.mark.sqlite, pytest.mark.sockets]

BROWSER = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
ROUTES = [route for route in pages.routes if isinstance(route, APIRoute)]
PAGES = sorted({route.path.replace("{job}", "12") for route in ROUTES if route.name == "page"})


def played(path: Path, story: Callable[[Rig], Awaitable[None]]) -> None:
    """A story over a service of its own."""

    async def run() -> None:
        async with a_rig(path) as rig:
            await story(rig)

    play(run)


def is_page(answer: httpx.Response) -> bool:
    """Whether it is a page that runs no scripts and leads back."""
    policy = answer.headers.get("content-security-policy", "")
    leads_back = '<a href="/">To the cluster</a>' in answer.text
    return leads_back and "default-src 'none'" in policy and "script" not in policy + answer.text


@pytest.mark.parametrize("person", ["", "ada"])
def test_an_unknown_address_says_so_on_a_page_that_leads_back(tmp_path: Path, person: str) -> None:
    async def story(rig: Rig) -> None:
        async with rig.client(person) as browser:
            for path in ("/nonsense", "/job/unknown", "/timeline/"):
                answer = await browser.get(path, headers=BROWSER)
                assert answer.status_code == HTTPStatus.NOT_FOUND
                assert answer.headers["content-type"] == "text/html; charset=utf-8"
                assert f"There is no page {path} here." in answer.text
                assert is_page(answer)

    played(tmp_path, story)


def test_an_address_is_repeated_as_text_and_not_as_a_part_of_the_page(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        async with rig.client() as browser:
            answer = await browser.get("/%3Cb%3E{detail}" + "x" * 5_000, headers=BROWSER)
            assert answer.status_code == HTTPStatus.NOT_FOUND
            assert "/&lt;b&gt;" in answer.text
            assert "<b>" not in answer.text
            assert len(answer.text) < 3_000

    played(tmp_path, story)


def test_programs_are_told_a_problem_as_before(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        async with rig.client("ada") as program:
            for path, headers in (
                ("/nonsense", {}),
                ("/nonsense", {"accept": "application/json"}),
                ("/api/v1/nonsense", BROWSER),
                ("/api/v1/jobs/99", BROWSER),
                ("/static/nonsense.js", BROWSER),
            ):
                answer = await program.get(path, headers=headers)
                assert answer.status_code == HTTPStatus.NOT_FOUND
                assert answer.headers["content-type"] == MEDIA_TYPE, path
            answer = await program.post("/nonsense", headers=BROWSER)
            assert answer.headers["content-type"] == MEDIA_TYPE

    played(tmp_path, story)


def test_what_needs_a_token_says_so_on_a_page(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        async with rig.client() as browser:
            answer = await browser.get("/metrics", headers=BROWSER)
            assert answer.status_code == HTTPStatus.UNAUTHORIZED
            assert "A bearer token is needed." in answer.text
            assert is_page(answer)
            assert (await browser.get("/metrics")).headers["content-type"] == MEDIA_TYPE

    played(tmp_path, story)


def test_every_page_opens_without_a_token_so_that_it_can_ask_for_one(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        async with rig.client() as nobody:
            assert {path: (await nobody.get(path)).status_code for path in PAGES} == dict.fromkeys(PAGES, 200)

    assert "/timeline" in PAGES
    played(tmp_path, story)


def test_a_standby_says_on_a_page_that_another_leads(tmp_path: Path) -> None:
    async def story(_: Rig) -> None:
        transport = httpx.ASGITransport(app=StandbyApp(Limits()))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as browser:
            answer = await browser.get("/queue", headers=BROWSER)
            assert answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE
            assert "This service stands by: another service leads." in answer.text
            assert is_page(answer)
            assert (await browser.get("/queue")).headers["content-type"] == MEDIA_TYPE

    played(tmp_path, story)
