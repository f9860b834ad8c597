"""A wire between a client and PostgreSQL that can be cut at a chosen moment."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum


class Cut(Enum):
    """When the wire breaks, seen from a commit."""

    BEFORE = "before the server gets it"
    AFTER = "after the server has done it, before the client hears of it"


@dataclass
class Wire:
    """What passes from the port to the server. `cut` is used up by the first commit that it meets."""

    server: tuple[str, int]
    listener: socket.socket
    cut: Cut | None = None
    cuts: int = 0
    open: list[socket.socket] = field(default_factory=list)

    @property
    def port(self) -> int:
        return int(self.listener.getsockname()[1])

    def serve(self) -> None:
        with suppress(OSError):  # the listener is closed at the end
            while True:
                client, _ = self.listener.accept()
                upstream = socket.create_connection(self.server)
                self.open += [client, upstream]
                losing = threading.Event()
                for target in (self._to_server, self._to_client):
                    threading.Thread(target=target, args=(client, upstream, losing), daemon=True).start()

    def _to_server(self, client: socket.socket, upstream: socket.socket, losing: threading.Event) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                if b"COMMIT" in data and self.cut is not None:
                    cut, self.cut = self.cut, None
                    self.cuts += 1
                    if cut is Cut.BEFORE:
                        break
                    losing.set()
                upstream.sendall(data)
        hang_up(client, upstream)

    def _to_client(self, client: socket.socket, upstream: socket.socket, losing: threading.Event) -> None:
        with suppress(OSError):
            while data := upstream.recv(65536):
                if losing.is_set():  # the commit is done: this is its acknowledgement
                    break
                client.sendall(data)
        hang_up(client, upstream)


def hang_up(*ends: socket.socket) -> None:
    """Wake whoever reads from these, and end the connection."""
    for end in ends:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@contextmanager
def wire_to(port: int) -> Iterator[Wire]:
    """A wire to a server on loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        wire = Wire(("127.0.0.1", port), listener)
        accepting = threading.Thread(target=wire.serve, daemon=True)
        accepting.start()
        try:
            yield wire
        finally:
            hang_up(listener, *wire.open)
            accepting.join(10)
            for end in wire.open:
                end.close()
