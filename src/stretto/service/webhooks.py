"""Webhooks: which addresses are told what becomes of a job, and where such requests may go.

Where webhooks may go: a job file must not send the service to places that only the service can reach.

Allowed are public addresses, and hosts and networks that the operator names. What a name means is looked up
once for each request, which then goes to that very address. So a name cannot mean another one by then.
"""

import asyncio
import ipaddress
import logging
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import SplitResult, urlsplit

import httpx

from stretto.jobfile.parts import WebhookEvent
from stretto.model import InputError
from stretto.service.eventlog.writer import LogWriter
from stretto.service.pool import Turns
from stretto.service.state.events import AttemptClosed, Ended, Event, WorkersRan
from stretto.service.state.records import JobRecord

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


# ── webhooks: one POST of JSON for each moment of a job that its file asks to be told of ────────────────────


PAUSES_S = (1.0, 15.0)  # before it is tried again; chosen
ANSWER_S = 10.0
AT_ONCE, EACH = 256, 4  # deliveries of all owners, and of one; chosen
MOST_PENDING = 1_000  # of one owner; chosen: some hundred kB

log = logging.getLogger(__name__)

ENDS: Mapping[str, WebhookEvent] = {
    "COMPLETED": WebhookEvent.COMPLETED,
    "FAILED": WebhookEvent.FAILED,
    "CANCELLED": WebhookEvent.CANCELLED,
    "TIMEOUT": WebhookEvent.TIMEOUT,
}


@dataclass(frozen=True)
class Delivery:
    """One request that is to be made."""

    owner: str
    url: str
    body: Mapping[str, Any]


@dataclass
class Webhooks:
    """Deliveries on their way. Owners take turns: slow targets of one hold up only their own.

    pauses_s: before an address that did not answer well is tried again.
    """

    log_writer: LogWriter
    targets: Targets = field(default_factory=Targets)
    pauses_s: Sequence[float] = PAUSES_S
    _turns: Turns = field(default_factory=lambda: Turns(AT_ONCE, MOST_PENDING, EACH))
    pending: Counter[str] = field(default_factory=Counter)  # deliveries by owner
    _new: "asyncio.Queue[Delivery]" = field(default_factory=asyncio.Queue)

    def __post_init__(self) -> None:
        """Listen to what happens."""
        self.log_writer.listeners.append(self.heard)

    def heard(self, told: Sequence[tuple[int, Event]]) -> None:
        """Note what is to be delivered."""
        state = self.log_writer.state
        for _, event in told:
            record = state.jobs.get(str(getattr(event, "job", "")))
            if record is None or not record.spec.notify:
                continue
            moment = moment_of(event, record)
            addresses = [webhook.url for webhook in record.spec.notify if moment in webhook.on]
            body = body_of(record, moment, state.unix_s + state.at_s) if moment and addresses else {}
            for url in addresses:
                self._add(Delivery(record.user, url, body))

    def _add(self, one: Delivery) -> None:
        if self.pending[one.owner] >= MOST_PENDING:
            log.warning("too many webhooks of %s wait: none is sent for job %s", one.owner, one.body["job"])
            return
        self.pending[one.owner] += 1
        self._new.put_nowait(one)

    async def run(self) -> None:
        """Deliver until cancelled. No request is led elsewhere, and answers are not read."""
        async with (
            httpx.AsyncClient(timeout=ANSWER_S, trust_env=False) as client,
            asyncio.TaskGroup() as group,
        ):
            while True:
                group.create_task(self._deliver(client, await self._new.get()))

    async def _deliver(self, client: httpx.AsyncClient, delivery: Delivery) -> None:
        try:
            for pause_s in (*self.pauses_s, None):
                async with self._turns.turn(delivery.owner):
                    why = await self._try(client, delivery)
                if not why:
                    return
                if pause_s is not None:
                    await asyncio.sleep(pause_s)
            # Without the address, which may hold a secret.
            log.warning("job %s: its webhook cannot be delivered: %s", delivery.body["job"], why)
        finally:
            self.pending[delivery.owner] -= 1
            if not self.pending[delivery.owner]:
                del self.pending[delivery.owner]

    async def _try(self, client: httpx.AsyncClient, delivery: Delivery) -> str:
        """Why it could not be delivered; "" where it was."""
        try:
            target = await self.targets.resolve(delivery.url)  # once more: a name may lead elsewhere by now
            async with (
                asyncio.timeout(ANSWER_S),
                client.stream(
                    "POST",
                    target.url,
                    json=delivery.body,
                    headers={"host": target.host},
                    extensions={"sni_hostname": target.name},
                ) as answer,
            ):
                return "" if answer.is_success else f"HTTP status {answer.status_code}"
        except InputError as wrong:
            return str(wrong)
        except Exception as wrong:  # of any kind: an address is somebody's text, and must not end the service
            return type(wrong).__name__


def moment_of(event: Event, record: JobRecord) -> WebhookEvent | None:
    """What of all that happens is such a moment; the record is as it stands afterwards."""
    match event:
        case WorkersRan() if any(name.endswith(".0") for name in event.workers):
            return WebhookEvent.STARTED
        case AttemptClosed() if not record.has_ended and not record.ending:
            return WebhookEvent.PREEMPTED
        case Ended():
            return ENDS.get(event.state)
    return None


def body_of(record: JobRecord, moment: WebhookEvent, unix_s: float) -> dict[str, Any]:
    """What is told."""
    return {
        "moment": moment.value,
        "job": record.id,
        "name": record.spec.name,
        "array": record.array,
        "index": record.index,
        "user": record.user,
        "attempt": record.attempt,
        "status": record.status,
        "why": record.why,
        "unix_s": unix_s,
    }
