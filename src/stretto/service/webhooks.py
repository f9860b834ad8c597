"""Webhooks: which addresses are told what becomes of a job, and where such requests may go.

Where webhooks may go: a job file must not send the service to places that only the service can reach.

Allowed are public addresses, and hosts and networks that the operator names. What a name means is looked up
once for each request, which then goes to that very address. So a name cannot mean another one by then.
"""

import asyncio
import hmac
import ipaddress
import json
import logging
import os
import socket
import time
from base64 import b64decode, b64encode
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import SplitResult, urlsplit

import httpx

from stretto.errors import InputError
from stretto.service.eventlog.writer import LogWriter
from stretto.service.pool import Turns
from stretto.service.state.events import Event, WebhookDone
from stretto.service.state.outbox import MOST_PENDING, Delivery

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

LOOKUPS = 64  # at once, for deliveries; chosen: threads that mostly wait, a few of each owner
CHECKS, CHECK_S = 8, 3.0  # at once, at submissions, and for how long each waits; chosen
MOST_TARGETS = 16  # of a job; chosen
PORTS = {"http": 80, "https": 443}
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")  # RFC 6052: an IPv4 address is in its last four bytes


@dataclass(frozen=True)
class Target:
    """Where one request goes."""

    url: str  # with the address in place of the host's name
    host: str  # as the owner wrote it: for the Host header, and the certificate
    name: str  # without its port


@dataclass(frozen=True)
class Targets:
    """Which targets are allowed. Names are looked up in threads of their own."""

    hosts: frozenset[str] = frozenset()  # allowed wherever they lead
    networks: tuple[Network, ...] = ()  # likewise
    own_ports: frozenset[int] = frozenset()  # of the service, on this machine: never allowed
    own_hosts: frozenset[tuple[str, int]] = frozenset()  # other names of the service
    _lookups: ThreadPoolExecutor = field(default_factory=lambda: _threads(LOOKUPS), compare=False)
    _checks: ThreadPoolExecutor = field(default_factory=lambda: _threads(CHECKS), compare=False)

    @classmethod
    def of(
        cls, words: Sequence[str], own_ports: Sequence[int] = (), own_hosts: Sequence[tuple[str, int]] = ()
    ) -> Self:
        """From words of a command line: names of hosts, addresses and networks. Raises InputError."""
        hosts, networks = set(), []
        for word in words:
            try:
                networks.append(ipaddress.ip_network(word.strip("[]")))
            except ValueError as wrong:
                if not word or "/" in word or ":" in word or " " in word:
                    raise InputError(
                        f"--notify-allow {word}: expected a host, an address or a network: {wrong}"
                    ) from None
                hosts.add(word.lower())
        return cls(frozenset(hosts), tuple(networks), frozenset(own_ports), frozenset(own_hosts))

    async def check(self, urls: Sequence[str]) -> None:
        """Raise InputError for a URL that is not allowed, or too many of them.

        A name that means nothing now, or is not found in time, may mean something when a request is made.
        """
        if len(urls) > MOST_TARGETS:
            raise InputError(f"notify: expected at most {MOST_TARGETS} addresses, got {len(urls)}")
        for url in urls:
            _parts_of(url)
        with suppress(TimeoutError):
            async with asyncio.timeout(CHECK_S):
                for url in urls:
                    await self._resolved(url, self._checks)

    async def resolve(self, url: str) -> Target:
        """Where a request to a URL is to go. Raises InputError where it must not, OSError for no answer."""
        parts, addresses = await self._resolved(url, self._lookups)
        if not addresses:
            raise OSError("the name of the host means no address")
        address = addresses[0]
        port = f":{parts.port}" if parts.port is not None else ""
        place = f"[{address}]" if address.version == 6 else str(address)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
        return Target(parts._replace(netloc=place + port).geturl(), host + port, parts.hostname or "")

    async def _resolved(self, url: str, threads: ThreadPoolExecutor) -> tuple[SplitResult, list[Address]]:
        parts = _parts_of(url)
        host, port = (parts.hostname or "").rstrip("."), parts.port or PORTS[parts.scheme]
        loop = asyncio.get_running_loop()
        try:
            addresses = await loop.run_in_executor(threads, _addresses_of, host, port)
        except (OSError, UnicodeError):
            return parts, []
        for address in addresses:
            if (host, port) in self.own_hosts or (port in self.own_ports and _is_ours(address)):
                raise InputError(f"notify: {host} port {port} is this service")
            if not self._allows(host, address):
                raise InputError(
                    f"notify: {host} is {address}, expected a public address, or one that is allowed "
                    "by --notify-allow"
                )
        return parts, addresses

    def _allows(self, host: str, address: Address) -> bool:
        meant = _embedded_in(address)
        if host in self.hosts or any(meant in network for network in self.networks):
            return True
        return meant.is_global and not (meant.is_multicast or meant.is_reserved)


def _threads(at_once: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(at_once, thread_name_prefix="webhooks")


def _parts_of(url: str) -> SplitResult:
    """The parts of a URL; raises InputError for one that can lead nowhere, or holds credentials."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as wrong:
        raise InputError(f"notify: expected the address of a host: {wrong}") from None
    if parts.scheme not in PORTS or not parts.hostname:
        raise InputError("notify: expected http://HOST or https://HOST")
    if parts.username is not None or parts.password is not None:
        raise InputError("notify: expected an address without a user and password in it")
    return parts


def _addresses_of(host: str, port: int) -> list[Address]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    texts = dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in found)
    return [ipaddress.ip_address(text) for text in texts]


def _embedded_in(address: Address) -> Address:
    """The IPv4 address that an IPv6 address stands for, else itself."""
    if isinstance(address, ipaddress.IPv6Address):
        if address in NAT64:
            return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
        return address.ipv4_mapped or address.sixtofour or address
    return address


def _is_ours(address: Address) -> bool:
    """Whether it is an address of this machine: only to one of those a socket can be bound."""
    meant = _embedded_in(address)
    family = socket.AF_INET6 if meant.version == 6 else socket.AF_INET
    with closing(socket.socket(family, socket.SOCK_DGRAM)) as probe:
        try:
            probe.bind((str(meant), 0))
        except OSError:
            return False
    return True


# ── signatures, as https://www.standardwebhooks.com describes them ──────────────────────────────────────────


PREFIX = "whsec_"  # of a secret in text
SHORTEST, LONGEST = 24, 64  # bytes of a secret, by that description
MOST_SECRETS = 2  # the newer one first: receivers take either while it is being replaced


@dataclass
class Secrets:
    """What requests are signed with. Each owner has secrets of its own, so that none can sign for another.

    key: what secrets are made of where there is no file. file: one secret a line, two while one is replaced.
    The file is read again when it changes.
    """

    key: bytes
    file: Path | None = None
    _seen: tuple[int, int] = (0, 0)  # when the file had changed, and how long it was
    _read: tuple[bytes, ...] = ()  # what it said

    def of(self, owner: str) -> list[bytes]:
        """The secrets of an owner, the newest first."""
        return [hmac.digest(secret, b"webhooks of " + owner.encode(), "sha256") for secret in self._masters()]

    def headers(self, owner: str, name: str, body: bytes, unix_s: float) -> dict[str, str]:
        """The headers of a request that is made now."""
        signed = f"{name}.{int(unix_s)}.".encode() + body
        signatures = [b64encode(hmac.digest(secret, signed, "sha256")).decode() for secret in self.of(owner)]
        return {
            "webhook-id": name,
            "webhook-timestamp": str(int(unix_s)),
            "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
        }

    def _masters(self) -> tuple[bytes, ...]:
        if self.file is None:
            return (self.key,)
        try:
            status = self.file.stat()
            if self._seen != (seen := (status.st_mtime_ns, status.st_size)):
                self._read, self._seen = secrets_in(self.file), seen
        except (OSError, InputError) as wrong:
            if not self._read:
                raise
            log.warning("secrets of webhooks stay as they were: %s", wrong)
        return self._read


def secrets_in(file: Path) -> tuple[bytes, ...]:
    """The secrets of a file, the newest first. Raises InputError."""
    try:
        lines = file.read_text(encoding="ascii").split()
    except (OSError, UnicodeDecodeError) as wrong:
        why = wrong.strerror if isinstance(wrong, OSError) else "it is no ASCII text"
        raise InputError(f"--webhook-secret-file {file}: cannot be read: {why}") from None
    try:
        secrets = tuple(b64decode(line.removeprefix(PREFIX), validate=True) for line in lines)
    except ValueError:
        secrets = ()
    if not 1 <= len(secrets) <= MOST_SECRETS or not all(SHORTEST <= len(each) <= LONGEST for each in secrets):
        raise InputError(
            f"--webhook-secret-file {file}: expected one line or two, each of {SHORTEST} to {LONGEST} bytes "
            f"in base64, as `openssl rand -base64 32` prints, got {len(lines)} line{'s' * (len(lines) != 1)}"
        )
    return secrets


def in_text(secret: bytes) -> str:
    """A secret as receivers are given it."""
    return PREFIX + b64encode(secret).decode()


# ── webhooks: one POST of JSON for each moment of a job that its file asks to be told of ────────────────────


# Before it is tried again, for about a day in all; chosen
PAUSES_S = (1.0, 15.0, 60.0, 300.0, 900.0, *(3600.0,) * 23)
KEPT_S = 86_400.0  # from the moment on, after which it is given up; a restart tries anew until then
ANSWER_S = 10.0
AT_ONCE, EACH = 256, 4  # deliveries of all owners, and of one; chosen

log = logging.getLogger(__name__)


@dataclass
class Webhooks:
    """Deliveries on their way. Owners take turns: slow targets of one hold up only their own.

    pauses_s: before an address that did not answer well is tried again.
    """

    log_writer: LogWriter
    targets: Targets = field(default_factory=Targets)
    pauses_s: Sequence[float] = PAUSES_S
    secrets: Secrets = field(default_factory=lambda: Secrets(os.urandom(32)))
    _turns: Turns = field(default_factory=lambda: Turns(AT_ONCE, MOST_PENDING, EACH))
    _taken: set[str] = field(default_factory=set)  # ids that are on their way here
    _new: "asyncio.Queue[Delivery]" = field(default_factory=asyncio.Queue)

    def __post_init__(self) -> None:
        """Listen to what happens."""
        self.log_writer.listeners.append(self.heard)

    def heard(self, told: Sequence[tuple[int, Event]]) -> None:
        """Take what is to be delivered since; the newest are the last."""
        new: list[Delivery] = []
        for delivery in reversed(self.log_writer.state.outbox.deliveries.values()):
            if delivery.id in self._taken:
                break
            new.append(delivery)
        for delivery in reversed(new):
            self._taken.add(delivery.id)
            self._new.put_nowait(delivery)

    async def run(self) -> None:
        """Deliver until cancelled. No request is led elsewhere, and answers are not read."""
        self.heard(())
        async with (
            httpx.AsyncClient(timeout=ANSWER_S, trust_env=False) as client,
            asyncio.TaskGroup() as group,
        ):
            while True:
                group.create_task(self._deliver(client, await self._new.get()))

    async def _deliver(self, client: httpx.AsyncClient, delivery: Delivery) -> None:
        why = ""
        for pause_s in (*self.pauses_s, None):
            async with self._turns.turn(delivery.owner):
                why = await self._try(client, delivery)
            state = self.log_writer.state
            if not why or pause_s is None or state.unix_s + state.at_s > delivery.unix_s + KEPT_S:
                break
            await asyncio.sleep(pause_s)
        if why:  # without the address, which may hold a secret
            log.warning("%s: its webhook cannot be delivered: %s", delivery.about, why)
        await self.log_writer.record(WebhookDone(delivery.job, delivery.id, why))
        self._taken.discard(delivery.id)

    async def _try(self, client: httpx.AsyncClient, delivery: Delivery) -> str:
        """Why it could not be delivered; "" where it was."""
        try:
            target = await self.targets.resolve(delivery.url)  # once more: a name may lead elsewhere by now
            body = json.dumps(delivery.body, separators=(",", ":")).encode()
            signed = self.secrets.headers(delivery.owner, delivery.id, body, time.time())
            async with (
                asyncio.timeout(ANSWER_S),
                client.stream(
                    "POST",
                    target.url,
                    content=body,
                    headers={"host": target.host, "content-type": "application/json", **signed},
                    extensions={"sni_hostname": target.name},
                ) as answer,
            ):
                return "" if answer.is_success else f"HTTP status {answer.status_code}"
        except InputError as wrong:
            return str(wrong)
        except Exception as wrong:  # of any kind: an address is somebody's text, and must not end the service
            return type(wrong).__name__
