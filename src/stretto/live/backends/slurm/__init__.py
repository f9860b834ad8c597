"""Workers as jobs of Slurm."""

from dataclasses import dataclass
from pathlib import Path

from stretto.live.backends.protocol import Backend
from stretto.model.errors import InputError


@dataclass(frozen=True)
class SlurmOptions:
    """What the service asks of Slurm for all jobs."""

    partitions: tuple[str, ...] = ()  # (): the default one
    account: str = ""
    qos: str = ""


async def open_slurm(options: SlurmOptions, service: str, shared: Path) -> Backend:
    """The backend of a cluster. Raises InputError where it cannot be used."""
    raise InputError(f"--backend slurm: cannot use {options} yet, for {service} with {shared}")
