"""Programs beside workers in their pods: the API server's `exec`, as `kubectl exec` uses it, by WebSocket.

What runs there is the helper of any machine, from the ConfigMap that also has the supervisor.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx2 as httpx
import msgspec
from lightkube.config.client_adapter import verify_cluster

from stretto.backends.kubernetes import manifests, objects
from stretto.backends.kubernetes.api import PODS, Api, Closable, refusal_of
from stretto.backends.protocol import BackendUnreachable, Line, NoSuchWorker
from stretto.errors import InputError

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

PROTOCOL = "v4.channel.k8s.io"  # each message begins with the number of its channel
STDIN, STDOUT, STDERR, STATUS = range(4)
OPEN_S = 30.0
PING_S = 20.0  # so that nothing between here and there takes a silent program for a lost one; chosen
MOST_UNSENT = 1 << 16  # bytes that `drain` leaves unsent; chosen
PIECE = 1 << 15
LAST_WORDS = 400  # characters of what a program that failed had to say
UNAUTHORIZED, FORBIDDEN, NOT_FOUND = 401, 403, 404


@dataclass(eq=False)
class PodLine:
    """A `Line` through the standard input and output of a program in a container."""

    socket: "ClientConnection"
    lines: set[Closable]  # that are open; this one is among them until it is closed
    unread: bytearray = field(default_factory=bytearray)
    unsent: bytearray = field(default_factory=bytearray)
    complaints: bytearray = field(default_factory=bytearray)
    sending: "asyncio.Task[None] | None" = None
    closing: "asyncio.Task[None] | None" = None

    async def readexactly(self, n: int, /) -> bytes:
        """So many bytes; raises EOFError, or OSError with what the program or its kubelet said."""
        from websockets.exceptions import ConnectionClosed

        while len(self.unread) < n:
            try:
                message = await self.socket.recv(decode=False)
            except ConnectionClosed:
                if words := " ".join(self.complaints.decode(errors="replace").split())[-LAST_WORDS:]:
                    raise OSError(words) from None
                raise EOFError from None
            self._take(message)
        piece = bytes(self.unread[:n])
        del self.unread[:n]
        return piece

    def _take(self, message: bytes) -> None:
        channel, content = message[:1], message[1:]
        if channel == bytes([STDOUT]):
            self.unread += content
        elif channel == bytes([STDERR]):
            self.complaints += content
            del self.complaints[: -4 * LAST_WORDS]
        elif channel == bytes([STATUS]):
            with suppress(msgspec.DecodeError, UnicodeDecodeError):
                status = msgspec.json.decode(content, type=objects.Status)
                self.complaints += f" {status.message}".encode() if status.message else b""

    def write(self, data: bytes, /) -> None:
        """Leave bytes to be sent."""
        self.unsent += data
        if self.sending is None or self.sending.done():
            self.sending = asyncio.get_running_loop().create_task(self._send())

    async def _send(self) -> None:
        from websockets.exceptions import ConnectionClosed

        with suppress(ConnectionClosed):
            while self.unsent:
                piece = bytes(self.unsent[:PIECE])
                del self.unsent[:PIECE]
                await self.socket.send(bytes([STDIN]) + piece)

    async def drain(self) -> None:
        """Wait until there is room for more; raises OSError where it breaks."""
        while len(self.unsent) > MOST_UNSENT and self.sending is not None:
            await asyncio.wait({self.sending})
            if self.unsent:
                raise ConnectionResetError("the connection to its pod is lost")

    def close(self) -> None:
        """Let go of it: the program finds its input closed, and ends."""
        if self.closing is None:
            self.closing = asyncio.get_running_loop().create_task(self._close())

    async def closed(self) -> None:
        """Let go of it, and wait until its connection is gone, however slow the server is."""
        self.close()
        assert self.closing is not None
        await self.closing

    async def _close(self) -> None:
        if self.sending is not None:
            self.sending.cancel()
        try:
            await self.socket.close()
        finally:
            self.lines.discard(self)


def path_of(pod: objects.Pod) -> str:
    """Where the API server has a pod."""
    return PODS.path(pod.metadata.namespace, pod.metadata.name)


async def reach_in(api: Api, pod: objects.Pod | None, python: str) -> Line:
    """A line to an exec session in a pod of ours that runs; None: it does not.

    Raises NoSuchWorker, BackendUnreachable, InputError.
    """
    if pod is None:
        raise InputError("its worker does not run in a pod of the service")
    try:
        from websockets.exceptions import InvalidHandshake, InvalidStatus
    except ModuleNotFoundError:
        raise InputError("this needs websockets: install stretto[serve]") from None
    script = f"{manifests.CODE}/exec_session.py"
    params = {
        "container": manifests.CONTAINER,
        "command": [python, "-I", "-S", script, manifests.RUN],
        **dict.fromkeys(("stdin", "stdout", "stderr"), "true"),
    }
    path = f"{path_of(pod)}/exec"
    for has_token in (False, True):
        try:
            line = PodLine(await _connected(api, path, params), api.lines)
            api.lines.add(line)
            return line
        except InvalidStatus as refused:
            code = refused.response.status_code
            if code == UNAUTHORIZED and not has_token:
                await api.version()  # a token that has run out is fetched anew for any call
                continue
            why = refusal_of(code, bytes(refused.response.body or b""))
            if code == FORBIDDEN:
                raise InputError(f"the service may not run programs in pods: {why}") from None
            if code == NOT_FOUND:
                raise NoSuchWorker(f"its pod is gone: {why}") from None
            raise BackendUnreachable(f"the API server answered {code}: {why}") from None
        except (OSError, InvalidHandshake) as failure:
            wrong = str(failure) or type(failure).__name__
            raise BackendUnreachable(f"the API server at {api.server} did not answer: {wrong}") from failure
    raise BackendUnreachable(f"the API server at {api.server} takes no token of ours")


async def _connected(api: Api, path: str, params: dict[str, Any]) -> "ClientConnection":
    from websockets.asyncio.client import connect

    request = api.client.build_request("GET", path, params=params)
    await _log_in(api, request)
    is_secure = request.url.scheme == "https"
    cluster, user = api.config.cluster, api.config.user
    verify = verify_cluster(cluster, user, api.config.abs_file) if is_secure and user else None
    return await connect(
        str(request.url.copy_with(scheme="wss" if is_secure else "ws")),
        ssl=verify,
        subprotocols=[PROTOCOL],  # type: ignore[list-item]
        additional_headers={"authorization": each}
        if (each := request.headers.get("authorization"))
        else None,
        compression=None,
        max_size=None,
        open_timeout=OPEN_S,
        ping_interval=PING_S,
        ping_timeout=None,  # a reader that pauses must not be cut off
    )


async def _log_in(api: Api, request: httpx.Request) -> None:
    """Add the header by which all calls log in."""
    if (auth := api.client.auth) is not None:
        flow = auth.async_auth_flow(request)
        await anext(flow)
        await flow.aclose()
