"""What an administrator says of an identity provider, in a file of `stretto serve --oidc`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from stretto.client.trust import certificates_in
from stretto.clusters.entries import Entry, entry_of, read_text, read_yaml
from stretto.errors import InputError

OPTION = "--oidc"
KEYS = (
    *("issuer", "client_id", "client_secret_file", "name", "redirect_url", "audiences", "scopes"),
    *("user_claim", "groups_claim", "roles", "ca_file", "session_hours"),
)
ROLES = ("admin", "operator", "user")  # the greatest first
EVERYBODY = "*"
SCOPES = ("openid", "profile", "email")
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
LONGEST_SECRET = 1_000
SESSION_HOURS, MOST_SESSION_HOURS = 8.0, 24.0  # chosen: a working day, and a day


@dataclass(frozen=True)
class OidcSettings:
    """Of one provider."""

    issuer: str
    client_id: str
    client_secret: str = field(default="", repr=False)  # "": a public client, which PKCE protects
    name: str = "single sign-on"  # on the page for logging in
    redirect_url: str = ""  # of the dashboard; "": the service's own address
    audiences: tuple[str, ...] = ()  # of tokens that programs show; (): the client's id
    scopes: tuple[str, ...] = SCOPES
    user_claim: str = "preferred_username"
    groups_claim: str = "groups"
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by role
    session_s: float = SESSION_HOURS * 3600  # of a browser, until its user logs in again
    authorities: str = ""  # certificates that the provider is verified by; "": those of the system

    @property
    def accepted(self) -> tuple[str, ...]:
        """Of tokens that programs show."""
        return self.audiences or (self.client_id,)

    def role_of(self, groups: frozenset[str]) -> str:
        """The greatest role that any group has; "" where none has one."""
        for role in ROLES:
            wanted = self.groups.get(role, ())
            if EVERYBODY in wanted or groups.intersection(wanted):
                return role
        return ""


def read_oidc(path: Path) -> OidcSettings:
    """The settings of a file. Raises InputError."""
    entry = entry_of(read_yaml(read_text(path), str(path)), str(path), KEYS)
    roles = entry_of(entry.values.get("roles", {}), f"{path}: roles", ROLES)
    groups = {role: roles.texts(role) for role in ROLES if role in roles.values}
    if not any(groups.values()):
        raise InputError(
            f"{path}: roles must name groups of {', '.join(ROLES)}, or {EVERYBODY!r} for everybody, got none"
        )
    issuer = entry.text("issuer")
    check_address(issuer, f"{path}: issuer")
    redirect_url = entry.text("redirect_url", default="")
    if redirect_url:
        check_address(redirect_url, f"{path}: redirect_url")
    ca_file = entry.text("ca_file", default="")
    return OidcSettings(
        issuer,
        entry.text("client_id"),
        _secret(entry, path),
        name=entry.text("name", default=OidcSettings.name),
        redirect_url=redirect_url.rstrip("/"),
        audiences=_texts(entry, "audiences", ()),
        scopes=tuple(dict.fromkeys(("openid", *_texts(entry, "scopes", SCOPES)))),
        user_claim=entry.text("user_claim", default=OidcSettings.user_claim),
        groups_claim=entry.text("groups_claim", default=OidcSettings.groups_claim),
        groups=groups,
        session_s=_session_hours(entry, path) * 3600,
        authorities=certificates_in(path.parent / ca_file, f"{path}: ca_file") if ca_file else "",
    )


def check_address(url: str, where: str) -> None:
    """Raise InputError for an address where a stranger could listen or answer."""
    parts = urlsplit(url)
    is_safe = parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK)
    if not is_safe or not parts.hostname:
        raise InputError(f"{where} must be an address that starts with https://, got {url!r}")


def _texts(entry: Entry, key: str, usual: tuple[str, ...]) -> tuple[str, ...]:
    return entry.texts(key) if key in entry.values else usual


def _session_hours(entry: Entry, path: Path) -> float:
    hours = entry.values.get("session_hours", SESSION_HOURS)
    is_number = isinstance(hours, int | float) and not isinstance(hours, bool)
    if not is_number or not 0 < hours <= MOST_SESSION_HOURS:
        raise InputError(
            f"{path}: session_hours must be a number above 0 and at most {MOST_SESSION_HOURS:g},"
            f" got {hours!r}"
        )
    return float(hours)


def _secret(entry: Entry, path: Path) -> str:
    name = entry.text("client_secret_file", default="")
    if not name:
        return ""
    file = path.parent / name
    try:
        secret: Any = file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as wrong:
        why = wrong.strerror if isinstance(wrong, OSError) else "not ASCII"
        raise InputError(f"{path}: client_secret_file {file}: cannot be read: {why}") from None
    if not 0 < len(secret) <= LONGEST_SECRET or "\n" in secret:
        raise InputError(f"{path}: client_secret_file {file}: expected one line, got something else")
    return str(secret)
