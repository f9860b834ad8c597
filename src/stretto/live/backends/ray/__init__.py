"""Workers as actors of a Ray cluster."""

from pathlib import Path

from stretto.live.backends.protocol import Backend
from stretto.model.errors import InputError


async def open_ray(address: str, service: str, shared: Path) -> Backend:
    """The backend of a cluster. Raises InputError where it cannot be used."""
    raise InputError(f"--backend ray: cannot use {address} yet, for {service} with {shared}")
