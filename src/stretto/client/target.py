"""Which service does a client ask, with which token, and how is that service verified?"""

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx

from stretto.client import contexts, trust
from stretto.client.errors import ServiceError, Untrusted
from stretto.client.tokens import PLAIN, token_in
from stretto.errors import InputError, StrettoError

USUAL_URL = "http://127.0.0.1:8700"


@dataclass(frozen=True)
class Target:
    """A service to ask: its addresses, the headers of every request, and how it is verified."""

    url: str  # as it was given, with commas between several
    addresses: tuple[httpx.URL, ...]
    headers: Mapping[str, str]  # of every request
    verify: ssl.SSLContext | bool  # False: without TLS


def target_of(url: str, token: str | None, ca_file: str) -> Target:
    """What is given, else what the environment says, else the user's context. Raises InputError.

    token: None for none, whatever the environment has.
    """
    url = url or os.environ.get("STRETTO_URL", "")
    context = None if url else contexts.present()
    url = url or (context.addresses if context else USUAL_URL)
    addresses = addresses_of(url)
    token = None if token is None else token_of(token, context)
    headers = {"authorization": f"Bearer {token}"} if token else {"x-stretto-user": user_here()}
    if not ca_file and not os.environ.get(trust.VARIABLE) and context is not None:
        ca_file = context.authorities
    encrypted = next((str(url) for url in addresses if url.scheme == "https"), "")
    return Target(url, tuple(addresses), headers, trust.context_for(encrypted, ca_file))


def unanswered(target: Target, failure: httpx.HTTPError) -> StrettoError:
    """The error where no answer came: the certificate is not trusted, or no service is there."""
    if why := trust.why_untrusted(failure):
        return Untrusted(
            f"--url {target.url}: the service's certificate is not trusted: {why}; --ca-file or "
            f"{trust.VARIABLE} names the certificates of its authorities"
        )
    hint = ""
    if isinstance(failure, httpx.ConnectError):
        hint = "; --url, STRETTO_URL or `stretto context` says where one is"
    elif isinstance(failure, (httpx.RemoteProtocolError, httpx.ReadError)) and not target.verify:
        hint = "; one with TLS has a URL with https://"
    return ServiceError(f"no service answers at {target.url}: {failure}{hint}")


def addresses_of(urls: str) -> list[httpx.URL]:
    """The addresses that a text names, with commas between them. Raises InputError."""
    addresses = []
    for url in (each.strip() for each in urls.split(",")):
        if not url.startswith(("http://", "https://")):
            raise InputError(f"--url {url}: expected the address of a service, http://HOST:PORT")
        try:
            addresses.append(httpx.URL(url))
        except (httpx.InvalidURL, ValueError) as wrong:
            raise InputError(f"--url {url}: expected the address of a service: {wrong}") from None
        if "," in urls and addresses[-1].path.strip("/"):
            raise InputError(f"--url {url}: expected no path where there are several addresses")
    return addresses


def token_of(given: str, context: contexts.Context | None) -> str:
    """The token that is given, else that of the environment, else of the context; "" for none."""
    token = given or os.environ.get("STRETTO_TOKEN", "")
    if not token and (file := os.environ.get("STRETTO_TOKEN_FILE", "")):
        token = token_in(Path(file), "STRETTO_TOKEN_FILE")
    if not token and context is not None:
        token = context.its_token()
    if not PLAIN.fullmatch(token):  # which is not shown: it may be one but for a slip
        raise InputError("--token: expected letters, digits and signs of ASCII, got something else")
    return token


def user_here() -> str:
    """The user where no token says it: the name at the machine's login, if a header can hold it."""
    name = os.environ.get("USER") or os.environ.get("LOGNAME") or "me"
    return name if PLAIN.fullmatch(name) else f"uid-{os.getuid()}"
