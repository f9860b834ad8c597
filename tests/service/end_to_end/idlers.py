"""Somebody without a token who opens connections and asks for nothing."""

import contextlib
import socket
import threading
from collections import deque
from typing import Self

PAUSE_S = 0.002  # between two connections: some hundreds a second
CONNECT_S = 2.0
SAID = (
    b"",
    b"GET /healthz HTTP/1.1\r\nx-a: ",
    b"POST /api/v1/jobs HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{",
)


class Idlers:
    """A context manager: the newest `count` connections to a port; none ever asks for anything whole."""

    def __init__(self, port: int, count: int) -> None:
        self.port, self.opened = port, 0
        self.lines: deque[socket.socket] = deque(maxlen=count)
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._go_on, daemon=True)

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.thread.join()
        for line in self.lines:
            line.close()

    def _go_on(self) -> None:
        while not self.stop.wait(PAUSE_S):
            with contextlib.suppress(OSError):
                line = socket.create_connection(("127.0.0.1", self.port), CONNECT_S)
                if len(self.lines) == self.lines.maxlen:
                    self.lines.popleft().close()
                self.lines.append(line)
                line.sendall(SAID[self.opened % len(SAID)])
            self.opened += 1
