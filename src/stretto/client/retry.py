"""When a request to a service with several addresses goes to the next one, and how it is readdressed."""

import httpx

CONNECT_S = 5.0  # for a machine that is gone without a word, before the next is asked; chosen
STANDS_BY = "x-stretto-standby"  # a header of every answer of a service that does not lead
NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
MAY_BE_DONE = (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError, httpx.CloseError)


def may_be_sent_twice(request: httpx.Request) -> bool:
    """Whether a request that may have been done does nothing more when it is done again."""
    return request.method in ("GET", "HEAD", "PUT", "DELETE") or "idempotency-key" in request.headers


def readdressed(request: httpx.Request, address: httpx.URL) -> httpx.Request:
    """A request whose content was read, to another address."""
    url = request.url.copy_with(scheme=address.scheme, host=address.host, port=address.port)
    headers = httpx.Headers(request.headers)
    headers["host"] = address.netloc.decode("ascii")
    return httpx.Request(
        request.method, url, headers=headers, content=request.content, extensions=request.extensions
    )
