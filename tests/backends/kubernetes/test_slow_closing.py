"""A line to a pod is closed for good with the backend, however slow its API server is."""

import asyncio
import base64
from hashlib import sha1
from pathlib import Path

import pytest
from tests.backends.kubernetes.in_memory import kubeconfig
from websockets.protocol import State

from stretto.backends.kubernetes.api import Api, configuration
from stretto.backends.kubernetes.objects import Metadata, Pod
from stretto.backends.kubernetes.pod_exec import PROTOCOL, PodLine, reach_in

pytestmark = pytest.mark.sockets

GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # of RFC 6455
SLOW_S = 0.3
CLOSE = b"\x88\x02\x03\xe8"  # a frame that closes, with status 1000


async def slow_server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Open a WebSocket, and answer its closing only after a while."""
    asked = await reader.readuntil(b"\r\n\r\n")
    headers = dict(line.lower().split(b": ", 1) for line in asked.split(b"\r\n")[1:-2])
    key = next(
        line.split(b": ")[1] for line in asked.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key")
    )
    assert headers[b"upgrade"] == b"websocket"
    accept = base64.b64encode(sha1(key + GUID, usedforsecurity=False).digest())
    answer = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    answer += b"Sec-WebSocket-Accept: " + accept + b"\r\nSec-WebSocket-Protocol: " + PROTOCOL.encode()
    writer.write(answer + b"\r\n\r\n")
    await reader.read(1)  # the first byte of the frame that closes
    await asyncio.sleep(SLOW_S)
    writer.write(CLOSE)
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("is_let_go", [True, False])
def test_a_line_is_gone_once_the_backend_is_closed(tmp_path: Path, is_let_go: bool) -> None:
    async def story() -> None:
        async with await asyncio.start_server(slow_server, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            api = Api(configuration(kubeconfig(tmp_path, f"http://127.0.0.1:{port}")))
            line = await reach_in(api, Pod(metadata=Metadata(name="p", namespace="jobs")), "python")
            assert isinstance(line, PodLine)
            if is_let_go:
                line.close()
            await api.close()
            assert line.socket.state is State.CLOSED
            assert not api.lines

    asyncio.run(story())
