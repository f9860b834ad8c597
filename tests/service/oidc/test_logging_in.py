"""Logging in at an identity provider with a browser: there and back, and every way in which it fails."""

import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from tests.service.http.rig import Rig, a_rig, play
from tests.service.oidc.identity_provider import CLIENT, SECRET, IdentityProvider
from tests.service.oidc.test_tokens_of_a_provider import a_rig_with

from stretto.service.http.routes import oidc
from stretto.service.state.events import Audited

pytestmark = [pytest.mark.sqlite, pytest.mark.sockets]

ORIGIN = {"sec-fetch-site": "same-origin"}


class Browser:
    """One person's: it keeps cookies, and follows to the provider and back where it is told to."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client

    async def to_provider(self, then: str = "/") -> str:
        """Begin a login; the address to which the provider leads back."""
        there = await self.client.get("/login/oidc", params={"next": then})
        assert there.status_code == 303
        async with httpx.AsyncClient(trust_env=False) as at_provider:
            answer = await at_provider.get(there.headers["location"])
        assert answer.status_code == 302
        return str(answer.headers["location"])

    async def back(self, address: str, **changes: str) -> httpx.Response:
        """Come back, with changes to what the address says."""
        url = urlsplit(address)
        said = {name: values[0] for name, values in parse_qs(url.query).items()}
        return await self.client.get(url.path, params={**said, **changes})

    async def login(self, then: str = "/") -> httpx.Response:
        return await self.back(await self.to_provider(then))

    async def session(self) -> httpx.Response:
        return await self.client.get("/api/v1/session", headers=ORIGIN)


Story = Callable[[Rig, Browser], Awaitable[None]]


def tell(tmp_path: Path, identities: IdentityProvider, story: Story, **settings: Any) -> None:
    async def told() -> None:
        async with a_rig_with(tmp_path, identities, **settings) as rig, rig.client() as client:
            await story(rig, Browser(client))

    with identities:
        play(told)


def test_a_login_becomes_a_session_that_no_script_can_read(tmp_path: Path) -> None:
    identities = IdentityProvider()
    (tmp_path / "secret").write_text(f"{SECRET}\n", encoding="ascii")

    async def story(rig: Rig, browser: Browser) -> None:
        assert (await browser.session()).status_code == 401
        address = await browser.to_provider("/queue?user=ada")
        asked = next(iter(identities.codes.values()))
        assert asked["scope"].split()[0] == "openid"
        assert (asked["client_id"], asked["code_challenge_method"]) == (CLIENT, "S256")
        answer = await browser.back(address)
        assert (answer.status_code, answer.headers["location"]) == (303, "/queue?user=ada")
        session, ended = answer.headers.get_list("set-cookie")
        assert session.startswith("stretto_session=")
        assert "; HttpOnly; SameSite=Strict" in session
        assert ended.startswith("stretto_login=;")
        shown = (await browser.session()).json()
        assert (shown["user"], shown["role"]) == ("ada", "user")
        job = await rig.submit("ada")
        elsewhere = await browser.client.post(
            f"/api/v1/jobs/{job}/hold",
            headers={"sec-fetch-site": "cross-site", "origin": "https://evil.example"},
        )
        assert elsewhere.status_code == 403
        assert (await browser.client.post(f"/api/v1/jobs/{job}/hold", headers=ORIGIN)).status_code < 300
        await browser.client.post("/logout", headers=ORIGIN)
        assert (await browser.session()).status_code == 401

    tell(tmp_path, identities, story, client_secret_file="secret")


@pytest.mark.parametrize(
    ("then", "leads_to"),
    [
        ("/jobs/3?tab=log", "/jobs/3?tab=log"),
        ("//evil.example", "/"),
        ("/\\evil.example", "/"),
        ("https://evil.example/", "/"),
        ("/a\r\nset-cookie: x=y", "/"),
        ("javascript:alert(1)", "/"),
    ],
)
def test_a_login_leads_nowhere_else(tmp_path: Path, then: str, leads_to: str) -> None:
    async def story(_: Rig, browser: Browser) -> None:
        assert (await browser.login(then)).headers["location"] == leads_to

    tell(tmp_path, IdentityProvider(), story)


async def of_another_state(browser: Browser, _: IdentityProvider) -> httpx.Response:
    return await browser.back(await browser.to_provider(), state="another")


async def in_another_browser(browser: Browser, _: IdentityProvider) -> httpx.Response:
    address = await browser.to_provider()
    browser.client.cookies.clear()
    return await browser.back(address)


async def with_the_cookie_of_another_login(browser: Browser, _: IdentityProvider) -> httpx.Response:
    address = await browser.to_provider()
    await browser.to_provider()
    return await browser.back(address)


async def with_a_changed_cookie(browser: Browser, by: IdentityProvider) -> httpx.Response:
    address = await browser.to_provider()
    drawn, _, rest = browser.client.cookies["stretto_login"].partition(".")
    later = int(rest.partition(".")[0]) + 1_000_000
    browser.client.cookies.clear()
    cookie = {"cookie": f"stretto_login={drawn}.{later}.{rest.partition('.')[2]}"}
    url = urlsplit(address)
    return await browser.client.get(f"{url.path}?{url.query}", headers=cookie)


async def with_a_code_used_twice(browser: Browser, _: IdentityProvider) -> httpx.Response:
    address = await browser.to_provider()
    cookie = {"cookie": f"stretto_login={browser.client.cookies['stretto_login']}"}
    assert (await browser.back(address)).status_code == 303
    browser.client.cookies.clear()
    url = urlsplit(address)
    return await browser.client.get(f"{url.path}?{url.query}", headers=cookie)


async def with_a_token_of_another_login(browser: Browser, by: IdentityProvider) -> httpx.Response:
    by.wrong = {"nonce": "another"}
    return await browser.login()


async def with_a_token_without_a_nonce(browser: Browser, by: IdentityProvider) -> httpx.Response:
    by.wrong = {"nonce": None}
    return await browser.login()


async def with_a_token_for_another_client(browser: Browser, by: IdentityProvider) -> httpx.Response:
    by.wrong = {"aud": ["another", CLIENT]}
    return await browser.login()


async def from_another_issuer(browser: Browser, by: IdentityProvider) -> httpx.Response:
    by.wrong_iss = "https://evil.example"
    return await browser.login()


async def with_a_refusal(browser: Browser, by: IdentityProvider) -> httpx.Response:
    by.error = "access_denied"
    return await browser.login()


async def without_a_role(browser: Browser, by: IdentityProvider) -> httpx.Response:
    by.claims["groups"] = ["strangers"]
    return await browser.login()


async def while_the_provider_is_gone(browser: Browser, by: IdentityProvider) -> httpx.Response:
    address = await browser.to_provider()
    by.is_away = True
    return await browser.back(address)


FAILURES: dict[Callable[[Browser, IdentityProvider], Awaitable[httpx.Response]], tuple[int, str]] = {
    of_another_state: (401, oidc.NOT_BEGUN),
    in_another_browser: (401, oidc.NOT_BEGUN),
    with_the_cookie_of_another_login: (401, oidc.NOT_BEGUN),
    with_a_changed_cookie: (401, oidc.NOT_BEGUN),
    with_a_code_used_twice: (401, "the identity provider did not take the login"),
    with_a_token_of_another_login: (401, "the token is of another login"),
    with_a_token_without_a_nonce: (401, "the token is of another login"),
    with_a_token_for_another_client: (401, "the token is for another audience"),
    from_another_issuer: (401, oidc.ANOTHER),
    with_a_refusal: (401, oidc.CHANGED_MIND),
    without_a_role: (403, "none of your groups has a role here"),
    while_the_provider_is_gone: (401, "the identity provider did not take the login"),
}


@pytest.mark.parametrize("fails", FAILURES, ids=lambda fails: fails.__name__.replace("_", " "))
def test_a_login_that_goes_wrong_is_one_line_and_noted(
    tmp_path: Path, fails: Callable[[Browser, IdentityProvider], Awaitable[httpx.Response]]
) -> None:
    identities = IdentityProvider()

    async def story(rig: Rig, browser: Browser) -> None:
        answer = await fails(browser, identities)
        assert (answer.status_code, answer.text) == (FAILURES[fails][0], f"{FAILURES[fails][1]}\n")
        assert "stretto_session" not in answer.headers.get("set-cookie", "")
        browser.client.cookies.delete(
            "stretto_session"
        ) if "stretto_session" in browser.client.cookies else None
        assert (await browser.session()).status_code == 401
        await rig.until(lambda: any(one.kind == Audited.__name__ for one in rig.store.read()))

    tell(tmp_path, identities, story)


def test_a_login_that_takes_too_long_is_begun_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(_: Rig, browser: Browser) -> None:
        monkeypatch.setattr(oidc, "LASTS_S", -1)
        address = await browser.to_provider()
        assert (await browser.back(address)).status_code == 401

    tell(tmp_path, IdentityProvider(), story)


def test_a_session_ends_when_its_time_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    identities = IdentityProvider()
    identities.lasts_s = 7200.0  # of its token, which would go on

    async def story(_: Rig, browser: Browser) -> None:
        answer = await browser.login()
        assert answer.status_code == 303
        assert (await browser.session()).status_code == 200
        now = time.time
        monkeypatch.setattr(time, "time", lambda: now() + 3601.0)
        assert (await browser.session()).status_code == 401

    tell(tmp_path, identities, story, session_hours=1)


def test_without_a_provider_there_is_no_such_page(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("ada") as client:
            assert (await client.get("/login/methods")).json() == {"oidc": None}
            for path in ("/login/oidc", "/login/callback?code=a&state=b"):
                assert (await client.get(path)).status_code == 404

    play(story)


def test_a_session_of_a_provider_that_was_taken_out_opens_nothing(tmp_path: Path) -> None:
    kept: dict[str, str] = {}

    async def before(_: Rig, browser: Browser) -> None:
        await browser.login()
        kept["cookie"] = f"stretto_session={browser.client.cookies['stretto_session']}"
        assert (await browser.session()).status_code == 200

    async def afterwards() -> None:
        async with a_rig(tmp_path / "afterwards") as rig, rig.client() as client:
            answer = await client.get("/api/v1/session", headers={**ORIGIN, **kept})
            assert answer.status_code == 401

    tell(tmp_path, IdentityProvider(), before)
    play(afterwards)
