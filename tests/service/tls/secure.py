"""A real service with TLS."""

from pathlib import Path
from typing import Any

from tests.service.running import Running
from tests.service.tls.authority import Authority

from stretto.client import Client


class Secure(Running):
    """A service whose certificate an authority of its folder has signed; workers know that authority."""

    def __init__(self, folder: Path, *options: str, **named: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.authority = Authority(folder)
        self.files = self.authority.issue()
        pair = ("--tls-certificate", str(self.files.certificate), "--tls-key", str(self.files.key))
        super().__init__(folder, *options, *pair, "--ca-file", str(self.authority.file), **named)

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"https://{self.host}:{self.port}"

    def client(self) -> Client:
        """A new client that knows the authority."""
        return Client(self.url, None, ca_file=str(self.authority.file))
