"""How many connections there may be, and which one makes way where there is no room for another.

A connection costs a file. Without a bound, a stranger could open so many that the service cannot open the
files that it needs itself. Neither a token nor a byte is needed for that.
"""

import json
import socket
from collections import Counter
from dataclasses import dataclass, field
from http import HTTPStatus
from ipaddress import IPv6Address, ip_address
from typing import Any, Protocol, Self

from stretto.agent import open_files
from stretto.service.http.problems import MEDIA_TYPE, RETRY_SOON
from stretto.service.http.rate_limits import Limits

CLOSING = 8  # connections that are closed together before more are accepted; chosen: a quarter of the reserve


class Closable(Protocol):
    """A connection, as far as this module is concerned."""

    def drop(self) -> None:
        """Close it now, whatever is still to be sent."""
        ...


@dataclass(slots=True)
class _Entry:
    network: str
    is_trusted: bool = False  # a good token was shown on it
    is_closing: bool = False


@dataclass
class Connections:
    """All open connections, and which of them wait for nothing that we do.

    Where there is no room, the one that has waited longest makes way. It is one of the network with the most
    connections, and there first one on which no good token was ever shown. One with a request under way never
    does.
    """

    most: int
    most_of_network: int  # of one address; not of this machine, where a proxy may stand for everybody
    closed: Counter[str] = field(default_factory=Counter)  # how many we have closed, by the reason
    _entries: dict[Closable, _Entry] = field(default_factory=dict)
    _of_network: Counter[str] = field(default_factory=Counter)
    _waiting: dict[bool, dict[str, dict[Closable, None]]] = field(  # by trust and network, longest first
        default_factory=lambda: {False: {}, True: {}}
    )
    _landing: int = 0  # accepted, and not entered yet
    _closing: int = 0

    @classmethod
    def within(cls, limits: Limits) -> Self:
        """As many as the limits allow, and this process may open files for."""
        most = max(min(limits.connections, open_files.left_for_others()), 1)
        return cls(most, limits.connections_per_address)

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._entries) + self._landing

    def is_settling(self) -> bool:
        """Whether enough are being closed that the next newcomer can wait for that."""
        return self._closing >= max(min(CLOSING, self.most // 4), 1)

    def admit(self, address: str, file: int) -> bool:
        """Whether a connection that was just accepted may stay, be it that another makes way.

        file: its number, which tells how many files are open.
        """
        network = network_of(address)
        if self._of_network[network] >= self.most_of_network and not _is_here(network):
            admitted = self._make_way(network)
        elif self.count >= self.most or open_files.is_of_reserve(file):
            admitted = self._make_way()
        else:
            admitted = True
        self._landing += admitted
        self.closed["refused"] += not admitted
        return admitted

    def enter(self, connection: Closable, address: str) -> None:
        """A connection that was admitted is there, and waits."""
        self._landing = max(self._landing - 1, 0)
        entry = self._entries[connection] = _Entry(network_of(address))
        self._of_network[entry.network] += 1
        self.rest(connection)

    def work(self, connection: Closable) -> None:
        """A request is under way."""
        if (entry := self._entries.get(connection)) is not None:
            self._unlist(connection, entry)

    def rest(self, connection: Closable, is_trusted: bool = False) -> None:
        """Nothing is under way. is_trusted: a good token was shown."""
        if (entry := self._entries.get(connection)) is None or entry.is_closing:
            return
        self._unlist(connection, entry)
        entry.is_trusted |= is_trusted
        self._waiting[entry.is_trusted].setdefault(entry.network, {})[connection] = None

    def leave(self, connection: Closable) -> None:
        """A connection is gone."""
        if (entry := self._entries.pop(connection, None)) is None:
            return
        self._unlist(connection, entry)
        self._closing -= entry.is_closing
        self._of_network[entry.network] -= 1
        if not self._of_network[entry.network]:
            del self._of_network[entry.network]

    def _unlist(self, connection: Closable, entry: _Entry) -> None:
        waiting = self._waiting[entry.is_trusted]
        if (listed := waiting.get(entry.network)) is not None:
            listed.pop(connection, None)
            if not listed:
                del waiting[entry.network]

    def _make_way(self, network: str = "") -> bool:
        """Close the one that is to make way, of a network or of all; whether there is such a one."""
        for is_trusted in (False, True):
            waiting = self._waiting[is_trusted]
            candidates = waiting if not network else {network} & waiting.keys()
            if candidates:
                largest = max(candidates, key=lambda name: (self._of_network[name], name))
                connection = next(iter(waiting[largest]))
                entry = self._entries[connection]
                self._unlist(connection, entry)
                entry.is_closing = True
                self._closing += 1
                self.closed["crowded"] += 1
                connection.drop()
                return True
        return False


class Listener(socket.socket):
    """A listening socket that accepts only what there is room for.

    The event loop accepts as many at once as wait, before any of them can be closed again. So it is here that
    they are counted.
    """

    connections: Connections | None = None

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection that may stay. Raises BlockingIOError where there is none for now."""
        connections = self.connections
        if connections is None:
            return super().accept()
        if connections.is_settling():
            raise BlockingIOError("no room before others are closed")
        accepted, address = super().accept()
        if not connections.admit(address[0], accepted.fileno()):
            _refuse(accepted)
            raise BlockingIOError("no room")
        return accepted, address


def _refuse(accepted: socket.socket) -> None:
    """Say that there is no room, as far as that can be said without waiting, and hang up."""
    with accepted:
        accepted.setblocking(False)
        try:
            accepted.send(NO_ROOM)
            accepted.shutdown(socket.SHUT_WR)
        except OSError:
            return


def _no_room() -> bytes:
    status = HTTPStatus.SERVICE_UNAVAILABLE
    detail = "as many connections are open as may be: come back later"
    body = json.dumps(
        {"type": "about:blank", "title": status.phrase, "status": status.value, "detail": detail}
    ).encode()
    head = {**RETRY_SOON, "content-type": MEDIA_TYPE, "content-length": len(body), "connection": "close"}
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        *(f"{name}: {value}" for name, value in head.items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


NO_ROOM = _no_room()


def network_of(address: str) -> str:
    """An address, or the network of version 6 of which one customer usually has all addresses."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        if not parsed.is_loopback:
            return str(IPv6Address(int(parsed) >> 64 << 64))
    return str(parsed)


def _is_here(network: str) -> bool:
    try:
        return ip_address(network).is_loopback
    except ValueError:
        return True  # a socket without addresses, which is of this machine
