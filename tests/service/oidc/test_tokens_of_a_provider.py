"""Bearer tokens of an identity provider: what opens the interface, and every way in which one does not."""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.service.http.rig import Rig, a_rig, play
from tests.service.oidc.identity_provider import CLIENT, IdentityProvider, new_key, public_pem

from stretto.model import InputError
from stretto.service.http.oidc import read_oidc
from stretto.service.http.oidc.provider import AGAIN_S, KEEP_S, Provider
from stretto.service.state.events import Audited

pytestmark = [pytest.mark.sqlite, pytest.mark.sockets]


class Clock:
    """Time that passes only when it is told to."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@asynccontextmanager
async def a_rig_with(
    path: Path, identities: IdentityProvider, clock: Clock | None = None, **more: Any
) -> AsyncIterator[Rig]:
    file = path / "oidc.yaml"
    file.write_text(yaml.safe_dump(identities.settings(**more)), encoding="utf-8")
    provider = Provider(read_oidc(file), clock or Clock())
    async with a_rig(path, provider=provider) as rig:
        yield rig


def by_hand(header: dict[str, Any], token: str, sign: Callable[[bytes], bytes]) -> str:
    """A token of the same claims that no library would make."""
    body = token.split(".")[1]
    signed = f"{encoded(json.dumps(header).encode())}.{body}"
    return f"{signed}.{encoded(sign(signed.encode()))}"


def encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def hmac_by_the_public_key(by: IdentityProvider) -> str:
    pem = public_pem(by.keys["first"])
    header = {"alg": "HS256", "kid": "first", "typ": "JWT"}
    return by_hand(header, by.token(), lambda text: hmac.new(pem, text, hashlib.sha256).digest())


METHOD = "the token is signed by a method that is not taken"
BAD: dict[str, tuple[Callable[[IdentityProvider], str], str]] = {
    "another audience": (lambda by: by.token(aud="other"), "the token is for another audience"),
    "no audience": (lambda by: by.token(aud=None), "the token cannot be read"),
    "another issuer": (lambda by: by.token(iss="http://127.0.0.1:1"), "the token is of another issuer"),
    "expired": (lambda by: by.token(exp=time.time() - 60), "the token has expired"),
    "without an end": (lambda by: by.token(exp=None), "the token cannot be read"),
    "not yet": (lambda by: by.token(nbf=time.time() + 600), "the token is not valid yet"),
    "without a signature": (lambda by: by_hand({"alg": "none"}, by.token(), lambda _: b""), METHOD),
    "none with a kid": (
        lambda by: by_hand({"alg": "none", "kid": "first"}, by.token(), lambda _: b""),
        METHOD,
    ),
    "by the public key as a secret": (hmac_by_the_public_key, METHOD),
    "another method than the key's": (lambda by: by.token(algorithm="RS512"), METHOD),
    "an unknown key": (
        lambda by: by.token(key=new_key(), kid="unknown"),
        "the token is signed by a key that the identity provider does not have",
    ),
    "another key of that name": (lambda by: by.token(key=new_key()), "the signature of the token is wrong"),
    "changed claims": (
        lambda by: ".".join(
            (by.token().split(".")[0], by.token(groups=["heads"]).split(".")[1], by.token().split(".")[2])
        ),
        "the signature of the token is wrong",
    ),
    "no user": (lambda by: by.token(preferred_username=None), "the token names no user"),
    "a user of two lines": (lambda by: by.token(preferred_username="a\nb"), "the token names no user"),
    "rubbish": (lambda by: "a.b.c", "the token cannot be read"),
    "too long": (lambda by: by.token(much="x" * 20_000), "the token cannot be read"),
}


@pytest.mark.parametrize("how", BAD)
def test_a_token_that_is_not_to_be_believed_is_refused_in_one_line_and_noted(
    tmp_path: Path, how: str
) -> None:
    make, line = BAD[how]

    async def story() -> None:
        async with a_rig_with(tmp_path, identities) as rig:
            async with rig.client(token=make(identities)) as client:
                answer = await client.get("/api/v1/session")
            assert (answer.status_code, answer.json()["detail"]) == (401, line)
            assert answer.headers["www-authenticate"] == 'Bearer realm="stretto"'
            await rig.until(lambda: any(one.kind == Audited.__name__ for one in rig.store.read()))

    with IdentityProvider() as identities:
        play(story)


@pytest.mark.parametrize(
    ("groups", "role"),
    [
        (["staff"], "user"),
        (["staff", "ops"], "operator"),
        (["heads", "ops"], "admin"),
        ("heads", "admin"),
        (["strangers"], None),
        ([], None),
        ({"heads": True}, None),
    ],
)
def test_groups_give_the_greatest_of_their_roles(tmp_path: Path, groups: Any, role: str | None) -> None:
    async def story() -> None:
        async with (
            a_rig_with(tmp_path, identities) as rig,
            rig.client(token=identities.token(groups=groups)) as client,
        ):
            answer = await client.get("/api/v1/session")
            if role is None:
                assert answer.status_code == 403
                assert answer.json()["detail"] == "none of your groups has a role here"
            else:
                shown = answer.json()
                assert (shown["user"], shown["role"], shown["is_open"]) == ("ada", role, False)

    with IdentityProvider() as identities:
        play(story)


def test_a_user_of_the_provider_has_the_jobs_of_that_name_and_no_others(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig_with(tmp_path, identities) as rig:
            job = await rig.submit("ada")
            async with rig.client(token=identities.token()) as client:
                assert (await client.get(f"/api/v1/jobs/{job}")).status_code == 200
                assert (await client.get("/api/v1/tokens")).status_code == 403
            async with rig.client(token=identities.token(preferred_username="bob")) as client:
                assert (await client.get(f"/api/v1/jobs/{job}")).status_code == 404
            async with rig.client("ada") as client:  # tokens of the service go on
                assert (await client.get(f"/api/v1/jobs/{job}")).status_code == 200

    with IdentityProvider() as identities:
        play(story)


def test_claims_and_audiences_are_as_the_settings_say(tmp_path: Path) -> None:
    async def story() -> None:
        more: dict[str, Any] = {
            "audiences": ["gpu-cluster"],
            "user_claim": "email",
            "groups_claim": "realm_access.roles",
        }
        claims: dict[str, Any] = {"aud": ["gpu-cluster", "x"], "email": "ada@example.org"}
        claims |= {"realm_access": {"roles": ["ops"]}}
        async with a_rig_with(tmp_path, identities, **more) as rig:
            for verified, status in ((True, 200), (False, 401), (None, 401)):
                token = identities.token(email_verified=verified, **claims)
                async with rig.client(token=token) as client:
                    answer = await client.get("/api/v1/session")
                assert answer.status_code == status
                if status == 200:
                    assert answer.json()["user"] == "ada@example.org"
                    assert answer.json()["role"] == "operator"
            async with rig.client(token=identities.token(aud=CLIENT)) as client:
                assert (await client.get("/api/v1/session")).status_code == 401

    with IdentityProvider() as identities:
        play(story)


def test_new_keys_are_found_and_a_provider_that_is_away_is_not_missed(tmp_path: Path) -> None:
    clock = Clock()

    async def story() -> None:
        async with a_rig_with(tmp_path, identities, clock) as rig:

            async def status(token: str) -> int:
                async with rig.client(token=token) as client:
                    return (await client.get("/api/v1/session")).status_code

            old = identities.token()
            assert await status(old) == 200
            assert await status(old) == 200
            assert identities.asked.count("/keys") == 1, "keys are kept"
            identities.keys["second"] = new_key()
            identities.kid = "second"
            assert await status(identities.token()) == 401, "so soon it is not asked again"
            clock.now_s += AGAIN_S
            assert await status(identities.token()) == 200
            del identities.keys["first"]
            assert await status(old) == 200
            clock.now_s += KEEP_S
            assert await status(old) == 401, "a key that was taken back opens nothing"
            identities.is_away = True
            clock.now_s += 10 * KEEP_S
            asked = len(identities.asked)
            assert [await status(identities.token()) for _ in range(3)] == [200] * 3
            assert len(identities.asked) == asked + 1, "and it is not asked at every request"

    with IdentityProvider() as identities:
        play(story)


def test_keys_that_do_not_say_their_method_are_taken_for_those_that_they_can_be_of(tmp_path: Path) -> None:
    async def story() -> None:
        identities.says_method = False
        async with a_rig_with(tmp_path, identities) as rig:
            for token, status in (
                (identities.token(), 200),
                (identities.token(algorithm="PS256"), 200),
                (hmac_by_the_public_key(identities), 401),
                (by_hand({"alg": "ES256", "kid": "first"}, identities.token(), lambda _: b"x" * 64), 401),
            ):
                async with rig.client(token=token) as client:
                    assert (await client.get("/api/v1/session")).status_code == status

    with IdentityProvider() as identities:
        play(story)


def test_without_the_provider_its_tokens_wait_and_those_of_the_service_do_not(tmp_path: Path) -> None:
    async def story() -> None:
        identities.is_away = True
        async with a_rig_with(tmp_path, identities) as rig:
            async with rig.client(token=identities.token()) as client:
                answer = await client.get("/api/v1/session")
            assert answer.status_code == 503
            assert answer.json()["detail"] == "the identity provider does not answer as it should"
            assert "retry-after" in answer.headers
            async with rig.client("root") as client:
                assert (await client.get("/api/v1/session")).status_code == 200

    with IdentityProvider() as identities:
        play(story)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"issuer": "http://id.example.org"}, "issuer must be an address that starts with https://"),
        ({"issuer": ""}, "issuer must be a text"),
        ({"roles": {}}, "roles must name groups of admin, operator, user"),
        ({"roles": {"root": ["x"]}}, "roles: unknown key 'root'"),
        ({"client": "x"}, "unknown key 'client'"),
        ({"client_secret_file": "none"}, "client_secret_file .*none: cannot be read"),
        ({"ca_file": "none"}, "ca_file .*none: cannot be read"),
        ({"audiences": "stretto"}, "audiences must be a list of texts"),
        ({"session_hours": 25}, "session_hours must be a number above 0 and at most 24, got 25"),
        ({"session_hours": True}, "session_hours must be a number above 0 and at most 24, got True"),
        ({"redirect_url": "http://example.org"}, "redirect_url must be an address that starts with https"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(
    tmp_path: Path, changes: dict[str, Any], line: str
) -> None:
    usual = {"issuer": "https://id.example.org", "client_id": "a", "roles": {"user": ["*"]}}
    file = tmp_path / "oidc.yaml"
    file.write_text(yaml.safe_dump(usual), encoding="utf-8")
    assert read_oidc(file).role_of(frozenset()) == "user"
    file.write_text(yaml.safe_dump({**usual, **changes}), encoding="utf-8")
    with pytest.raises(InputError, match=f"{file}.*{line}") as refused:
        read_oidc(file)
    assert "\n" not in str(refused.value)
