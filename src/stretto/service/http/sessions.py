"""Sessions of people in a browser: a token, shown once, becomes a cookie that no script can read.

The cookie says which token it stands for and until when, under a digest by the service's key. So nothing is
kept of it: it holds over a restart and with a standby, and ends with its token. Where a user comes from
an identity provider, name and role stand in the place of the digest.
"""

import hashlib
import hmac
import time
from http.cookies import CookieError, SimpleCookie
from math import inf
from urllib.parse import urlsplit

from starlette.datastructures import Headers

COOKIE = "stretto_session"
LASTS_S = 12 * 3600  # chosen: a working day
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


def session_for(sha256: str, key: bytes, now_s: float, until_s: float = inf) -> str:
    """The value of the cookie that stands for a token from now on. now_s, until_s: Unix times."""
    text = f"{sha256}.{int(min(now_s + LASTS_S, until_s))}"
    return f"{text}.{_seal(text, key)}"


def digest_in(headers: Headers, key: bytes) -> str:
    """The digest of the token that the cookie of a request stands for; "" without a good cookie."""
    try:
        morsel = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    if morsel is None:
        return ""
    text, _, seal = morsel.value.rpartition(".")
    if not hmac.compare_digest(seal.encode(), _seal(text, key).encode()):
        return ""
    sha256, _, until_s = text.partition(".")
    return sha256 if until_s.isdecimal() and time.time() < int(until_s) else ""


def set_cookie(value: str, is_https: bool) -> str:
    """The header that gives a browser the cookie; with "" it is taken away."""
    age_s = LASTS_S if value else 0
    secure = "; Secure" if is_https else ""
    return f"{COOKIE}={value}; Path=/; Max-Age={age_s}; HttpOnly; SameSite=Strict{secure}"


def is_same_origin(headers: Headers) -> bool:
    """Whether a request comes from a page of this service, as browsers say it."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    return urlsplit(headers.get("origin", "")).netloc == headers.get("host", "")


def _seal(text: str, key: bytes) -> str:
    return hmac.new(key, f"session:{text}".encode(), hashlib.sha256).hexdigest()
