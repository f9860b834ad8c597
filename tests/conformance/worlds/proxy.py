"""A wire in front of a server of this machine: while it is slow, answers come late and some never."""

import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

LATE_S = 0.15  # longer than anything that is asked takes by itself
LOST = 0.25  # share of answers that never come, their connections cut; what was asked has been done


@dataclass
class Proxy:
    """A port of its own that leads to another; to none before that is known."""

    server: tuple[str, int] = ("127.0.0.1", 0)
    slow: bool = False
    chance: Random = field(default_factory=lambda: Random(1))
    listener: socket.socket = field(init=False)
    open: list[socket.socket] = field(default_factory=list)
    mute: set[socket.socket] = field(default_factory=set)  # connections that carry nothing any more

    def __post_init__(self) -> None:
        """Listen."""
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.accepting = threading.Thread(target=self._serve, daemon=True)
        self.accepting.start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.listener.getsockname()[1])

    def _serve(self) -> None:
        with suppress(OSError):  # the listener is closed at the end
            while True:
                client, _ = self.listener.accept()
                try:
                    upstream = socket.create_connection(self.server)
                except OSError:
                    client.close()  # nobody listens behind it
                    continue
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                upstream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.open = [one for one in self.open if one.fileno() >= 0] + [client, upstream]
                answers = threading.Thread(target=self._pass, args=(upstream, client, True), daemon=True)
                asks = threading.Thread(target=self._pass, args=(client, upstream, False), daemon=True)
                answers.start()
                asks.start()
                closing = threading.Thread(target=_close, args=(asks, answers, client, upstream), daemon=True)
                closing.start()

    def _pass(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if answers and self.slow:
                    time.sleep(LATE_S)
                    if self.chance.random() < LOST:
                        break
                if source not in self.mute:
                    target.sendall(data)
        hang_up(source, target)

    def cut(self) -> int:
        """End all connections; how many there were."""
        those = [one for one in self.open if one.fileno() >= 0]
        hang_up(*those)
        return len(those)

    def fall_silent(self) -> int:
        """Carry nothing over the connections that are open, and leave them open; how many these are.

        So it is where a firewall between two machines has forgotten a connection.
        """
        those = [one for one in self.open if one.fileno() >= 0]
        self.mute = {one for one in self.mute if one.fileno() >= 0} | {*those}
        return len(those)

    def close(self) -> None:
        """Listen no more, and cut what is open."""
        hang_up(self.listener, *self.open)
        self.listener.close()
        self.accepting.join(10)


def _close(asks: threading.Thread, answers: threading.Thread, *ends: socket.socket) -> None:
    asks.join()
    answers.join()
    for end in ends:
        end.close()


def hang_up(*ends: socket.socket) -> None:
    """Wake whoever reads from these, and end the connection."""
    for end in ends:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
