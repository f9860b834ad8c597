"""Several addresses of one service: where one does not answer, or stands by, the next one is asked.

A leader and its standby have an address each. At most one of them leads at a time.
"""

import threading
from collections.abc import Sequence

import httpx

CONNECT_S = 5.0  # for a machine that is gone without a word, before the next is asked; chosen
STANDS_BY = "x-stretto-standby"  # a header of every answer of a service that does not lead
NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
MAY_BE_DONE = (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError, httpx.CloseError)


class Failover(httpx.BaseTransport):
    """Sends requests to the address that answered last, else to the others in turn.

    A request is sent again only where that can do nothing twice. It never arrived, a standby answered it, it
    only reads, or it has an idempotency key.
    """

    def __init__(self, addresses: Sequence[httpx.URL], below: httpx.BaseTransport) -> None:
        self.addresses, self.below = tuple(addresses), below
        self._first = 0
        self._changing = threading.Lock()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """The first answer of a service that leads, else that of the last one asked."""
        request.read()  # to be sent again
        first, turns = self._first, len(self.addresses)
        for turn in range(turns):
            index, is_last = (first + turn) % turns, turn == turns - 1
            try:
                answer = self.below.handle_request(self._to(index, request))
            except NEVER_SENT:
                if is_last:
                    raise
                continue
            except MAY_BE_DONE:
                if is_last or not _may_be_sent_twice(request):
                    raise
                continue
            if STANDS_BY in answer.headers and not is_last:
                answer.close()
                continue
            with self._changing:
                self._first = index
            return answer
        raise AssertionError("there is at least one address")

    def _to(self, index: int, request: httpx.Request) -> httpx.Request:
        address = self.addresses[index]
        url = request.url.copy_with(scheme=address.scheme, host=address.host, port=address.port)
        headers = httpx.Headers(request.headers)
        headers["host"] = address.netloc.decode("ascii")
        return httpx.Request(
            request.method, url, headers=headers, content=request.content, extensions=request.extensions
        )

    def close(self) -> None:
        """Close all connections."""
        self.below.close()


def _may_be_sent_twice(request: httpx.Request) -> bool:
    return request.method in ("GET", "HEAD", "PUT", "DELETE") or "idempotency-key" in request.headers
