"""Ports for servers that have to be told theirs before they listen."""

import random
import socket
from contextlib import ExitStack

# Below those that Linux gives to whoever connects or asks for any, so that nobody gets one of them meanwhile;
# and above those that Ray gives to its workers.
FIRST, LAST = 20_000, 32_000


def free_ports(host: str, count: int) -> list[int]:
    """Different ports of an address that nobody listens on now."""
    chance = random.SystemRandom()  # not what a test may have seeded: others choose at the same time
    found: dict[int, None] = {}
    with ExitStack() as open_ones:
        while len(found) < count:
            port = chance.randrange(FIRST, LAST)
            try:
                open_ones.enter_context(socket.create_server((host, port)))
            except OSError:
                continue
            found[port] = None
    return list(found)
