"""An identity provider: its addresses and keys, and what its tokens say.

PyJWT verifies them. Only signatures by private keys are taken: a method with a shared secret would take the
provider's public key for one.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

import httpx
import jwt

from stretto.client import trust
from stretto.errors import InputError
from stretto.service.http.auth import CHALLENGE, USER
from stretto.service.http.identity import Identity
from stretto.service.http.oidc.settings import OidcSettings, check_address
from stretto.service.http.problems import RETRY_SOON, Problem

ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
NEEDED = ("iss", "aud", "sub", "exp", "iat")
ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri")
WELL_KNOWN = "/.well-known/openid-configuration"
KEEP_S = 600.0  # addresses and keys, before they are asked for again; chosen
AGAIN_S = 10.0  # between two questions for keys because of one that is not known; chosen
LEEWAY_S = 30.0  # of clocks that differ; chosen
ANSWER_S = 10.0
LONGEST = 16_384  # characters of a token; chosen: groups can be many

METHOD = "the token is signed by a method that is not taken"
KEY = "the token is signed by a key that the identity provider does not have"
SIGNATURE = "the signature of the token is wrong"
ISSUER = "the token is of another issuer"
AUDIENCE = "the token is for another audience"
EXPIRED = "the token has expired"
EARLY = "the token is not valid yet"
NONCE = "the token is of another login"
UNREADABLE = "the token cannot be read"
NO_USER = "the token names no user"
NO_ROLE = "none of your groups has a role here"
AWAY = "the identity provider does not answer as it should"


class Provider:
    """What is known of a provider, asked for when it is needed and kept for a while."""

    def __init__(self, settings: OidcSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self.settings, self._clock = settings, clock
        self._metadata: dict[str, Any] = {}
        self._keys: list[dict[str, Any]] = []
        self._read_s = -KEEP_S
        self._one = asyncio.Lock()
        is_https = settings.issuer.startswith("https://")
        verify = trust.context_by(settings.authorities) if is_https else False
        self._verify = verify

    async def metadata(self) -> Mapping[str, Any]:
        """Addresses and abilities of the provider. Raises 503 where they cannot be had."""
        await self._refresh(KEEP_S)
        return self._metadata

    async def exchanged(self, form: Mapping[str, str]) -> Mapping[str, Any]:
        """What the provider gives for a code. Raises 401 where it gives nothing."""
        metadata, settings = await self.metadata(), self.settings
        body: dict[str, str] = {**form, "client_id": settings.client_id}
        basic: httpx.Auth = httpx.Auth()  # which adds nothing
        if settings.client_secret:
            methods = metadata.get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
            if "client_secret_basic" in methods:
                basic = httpx.BasicAuth(settings.client_id, settings.client_secret)
            else:
                body["client_secret"] = settings.client_secret
        try:
            async with self._client() as client:
                answer = await client.post(metadata["token_endpoint"], data=body, auth=basic)
                given = answer.json() if answer.status_code == HTTPStatus.OK else None
        except (httpx.HTTPError, ValueError):
            raise _away() from None
        if not isinstance(given, dict) or not isinstance(given.get("id_token"), str):
            raise _refused("the identity provider did not take the login")
        return given

    async def verified(self, token: str, audiences: tuple[str, ...], nonce: str = "") -> Mapping[str, Any]:
        """The claims of a token. Raises 401, with one line, for one that is not to be believed."""
        if len(token) > LONGEST:
            raise _refused(UNREADABLE)
        try:
            header = jwt.get_unverified_header(token)
        except jwt.InvalidTokenError:
            raise _refused(UNREADABLE) from None
        algorithm, kid = header.get("alg"), header.get("kid")
        if algorithm not in ALGORITHMS:
            raise _refused(METHOD)
        key = await self._key(kid, algorithm)
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=list(audiences),
                issuer=self.settings.issuer,
                leeway=LEEWAY_S,
                options={"require": list(NEEDED)},
            )
        except jwt.InvalidTokenError as wrong:
            raise _refused(_line_of(wrong)) from None
        if nonce and claims.get("nonce") != nonce:
            raise _refused(NONCE)
        several = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
        if nonce and several and claims.get("azp") != self.settings.client_id:
            raise _refused(AUDIENCE)  # OpenID Connect Core, section 3.1.3.7
        return claims

    def identity_of(self, claims: Mapping[str, Any]) -> Identity:
        """The user and its role. Raises 401 for a user without a name, 403 for one without a role."""
        settings = self.settings
        user = _claim(claims, settings.user_claim)
        if settings.user_claim == "email" and claims.get("email_verified") is not True:
            raise _refused(NO_USER)
        if not isinstance(user, str) or not USER.fullmatch(user):
            raise _refused(NO_USER)
        groups = _claim(claims, settings.groups_claim)
        names = [groups] if isinstance(groups, str) else groups if isinstance(groups, list) else []
        role = settings.role_of(frozenset(name for name in names if isinstance(name, str)))
        if not role:
            raise Problem(HTTPStatus.FORBIDDEN, NO_ROLE)
        return Identity(user, role, float(claims["exp"]))

    async def identity(self, bearer: str) -> Identity:
        """The user of a token that a program shows. Raises 401 or 403."""
        return self.identity_of(await self.verified(bearer, self.settings.accepted))

    # ── keys ──────────────────────────────────────────────────────────────────────────────────────

    async def _key(self, kid: Any, algorithm: str) -> jwt.PyJWK:
        """The provider's key of that name: a new one is asked for, but not at every question."""
        await self._refresh(KEEP_S)
        if self._named(kid) is None:
            await self._refresh(AGAIN_S)
        key = self._named(kid)
        if key is None:
            raise _refused(KEY)
        if key.get("alg", algorithm) != algorithm:
            raise _refused(METHOD)
        try:
            return jwt.PyJWK(key, algorithm=algorithm)
        except jwt.PyJWTError:
            raise _refused(METHOD) from None

    def _named(self, kid: Any) -> dict[str, Any] | None:
        if kid is None and len(self._keys) == 1:
            return self._keys[0]
        return next((key for key in self._keys if kid is not None and key.get("kid") == kid), None)

    async def _refresh(self, older_than_s: float) -> None:
        """Ask the provider again where what is known is older. What is known outlasts a failure."""
        async with self._one:
            if self._metadata and self._clock() - self._read_s < older_than_s:
                return
            try:
                async with self._client() as client:
                    metadata = await _document(client, self.settings.issuer.rstrip("/") + WELL_KNOWN)
                    self._check(metadata)
                    keys = (await _document(client, metadata["jwks_uri"])).get("keys")
            except (httpx.HTTPError, ValueError, InputError):
                if not self._metadata:
                    raise _away() from None
                self._read_s = (
                    self._clock() - KEEP_S + AGAIN_S
                )  # a provider that is away is not asked at once
                return
            for_signing = [key for key in keys if isinstance(key, dict)] if isinstance(keys, list) else []
            self._keys = [key for key in for_signing if key.get("use", "sig") == "sig"]
            self._metadata, self._read_s = metadata, self._clock()

    def _check(self, metadata: Mapping[str, Any]) -> None:
        """Raise ValueError or InputError for what is not this issuer's, or leads where others listen."""
        if metadata.get("issuer") != self.settings.issuer:
            raise ValueError("another issuer")
        for name in ENDPOINTS:
            check_address(str(metadata.get(name, "")), name)

    def _client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(timeout=ANSWER_S, trust_env=False, verify=self._verify)


async def _document(client: httpx.AsyncClient, url: str) -> dict[str, Any]:
    answer = await client.get(url)
    answer.raise_for_status()
    document = answer.json()
    if not isinstance(document, dict):
        raise ValueError("no object")
    return document


def _claim(claims: Mapping[str, Any], name: str) -> Any:
    """A claim by its name; with dots in it, also one inside others, as `realm_access.roles`."""
    if name in claims:
        return claims[name]
    value: Any = claims
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _line_of(wrong: jwt.InvalidTokenError) -> str:
    """One line that says what is wrong, and nothing of what is right."""
    lines: list[tuple[type[Exception], str]] = [
        (jwt.ExpiredSignatureError, EXPIRED),
        (jwt.InvalidIssuerError, ISSUER),
        (jwt.InvalidAudienceError, AUDIENCE),
        (jwt.ImmatureSignatureError, EARLY),
        (jwt.InvalidIssuedAtError, EARLY),
        (jwt.InvalidAlgorithmError, METHOD),
        (jwt.InvalidSignatureError, SIGNATURE),
    ]
    return next((line for kind, line in lines if isinstance(wrong, kind)), UNREADABLE)


def _refused(line: str) -> Problem:
    return Problem(HTTPStatus.UNAUTHORIZED, line, CHALLENGE)


def _away() -> Problem:
    return Problem(HTTPStatus.SERVICE_UNAVAILABLE, AWAY, RETRY_SOON)
