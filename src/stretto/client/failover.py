# Made by tools/sync_client.py from async_failover.py: change that one.
"""Several addresses of one service: where one does not answer, or stands by, the next one is asked.

A leader and its standby have an address each. At most one of them leads at a time.
"""

from collections.abc import Sequence

import httpx

from stretto.client.retry import (
    MAY_BE_DONE,
    NEVER_SENT,
    STANDS_BY,
    may_be_sent_twice,
    readdressed,
)


class Failover(httpx.BaseTransport):
    """Sends requests to the address that answered last, else to the others in turn.

    A request is sent again only where that can do nothing twice. It never arrived, a standby answered it, it
    only reads, or it has an idempotency key.
    """

    def __init__(self, addresses: Sequence[httpx.URL], below: httpx.BaseTransport) -> None:
        self.addresses, self.below = tuple(addresses), below
        self._first = 0  # written in one step: threads may share a transport

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """The first answer of a service that leads, else that of the last one asked."""
        request.read()  # to be sent again
        first, turns = self._first, len(self.addresses)
        for turn in range(turns):
            index, is_last = (first + turn) % turns, turn == turns - 1
            try:
                answer = self.below.handle_request(readdressed(request, self.addresses[index]))
            except NEVER_SENT:
                if is_last:
                    raise
                continue
            except MAY_BE_DONE:
                if is_last or not may_be_sent_twice(request):
                    raise
                continue
            if STANDS_BY in answer.headers and not is_last:
                answer.close()
                continue
            self._first = index
            return answer
        raise AssertionError("there is at least one address")

    def close(self) -> None:
        """Close all connections."""
        self.below.close()
