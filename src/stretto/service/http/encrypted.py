"""TLS in front of the HTTP protocol: a connection has its place and its time before it has shaken hands.

asyncio's own way shows a connection to its protocol only after the handshake. Strangers could then open
connections without one, and none of them would be counted.
"""

import asyncio

import uvicorn
from fastapi import FastAPI

from stretto.service.http.certificates import Certificates
from stretto.service.http.server import LINGER_S, Protocol, config_of


class EncryptedProtocol(Protocol):
    """HTTP/1.1 inside TLS, with the certificate that is the newest when a connection is made."""

    _raw: asyncio.Transport
    _is_encrypted = False
    _handshake: "asyncio.Task[None] | None" = None  # kept, or it might be collected while it goes on

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a place, and shake hands."""
        assert isinstance(transport, asyncio.Transport)
        self._raw = transport
        self._early: list[bytes] = []  # what came right behind the handshake
        self._take_place((transport.get_extra_info("peername") or ("",))[0])
        self._handshake = self.loop.create_task(self._shake_hands())

    async def _shake_hands(self) -> None:
        certificates: Certificates = self.config.app.state.certificates  # type: ignore[union-attr]
        try:
            encrypted = await self.loop.start_tls(
                self._raw,
                self,
                certificates.context,
                server_side=True,
                ssl_handshake_timeout=self.limits.head_s,
                ssl_shutdown_timeout=LINGER_S,
            )
        except (OSError, asyncio.CancelledError):  # errors of TLS are OSErrors
            self.table.closed["handshake"] += 1
            self.table.leave(self)
            self._raw.abort()
            return
        if encrypted is None or encrypted.is_closing():
            self.table.leave(self)
            return
        self._is_encrypted = True
        super().connection_made(encrypted)
        early, self._early = self._early, []
        for data in early:
            self.data_received(data)

    def data_received(self, data: bytes) -> None:
        """Read on, once there is a protocol to read for."""
        if self._is_encrypted:
            super().data_received(data)
        else:
            self._early.append(data)

    def eof_received(self) -> bool:  # type: ignore[override]  # as asyncio has it, and uvicorn does not
        """Hang up: a connection with TLS has no half that stays open."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the place back."""
        if self._is_encrypted:
            super().connection_lost(exc)
        else:
            self.table.leave(self)

    def drop(self) -> None:
        """Close it now, whatever is still to be sent."""
        self._raw.abort()


def config_with(app: FastAPI, certificates: Certificates | None) -> uvicorn.Config:
    """How uvicorn serves the application: with TLS where there is a certificate."""
    if certificates is None:
        return config_of(app)
    app.state.certificates = certificates
    return config_of(app, EncryptedProtocol)
