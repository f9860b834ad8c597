"""The way into a cluster: everything that would keep it from working is said at once, in one line."""

from pathlib import Path

from stretto.live.backends.protocol import Backend, BackendUnreachable
from stretto.live.backends.slurm.backend import SlurmBackend
from stretto.live.backends.slurm.checks import check_partitions, check_rights
from stretto.live.backends.slurm.commands import require
from stretto.live.backends.slurm.options import SlurmOptions
from stretto.model.errors import InputError


async def open_slurm(options: SlurmOptions, service: str, shared: Path) -> Backend:
    """The backend of a cluster. Raises InputError where it cannot be used.

    service: the name under which slices of this service are found again. shared: a directory that all nodes
    see under the same path.
    """
    backend = SlurmBackend(options, service, shared.resolve())
    require(backend.asking.commands)
    try:
        partitions, default = await check_partitions(backend.asking, options)
        backend.looking.partitions, backend.looking.default_partition = partitions, default
        await check_rights(backend.asking, options, partitions)
        await backend.open()
    except BackendUnreachable as silence:
        raise InputError(f"--backend slurm: {silence}") from None
    if not backend.looking.nodes:
        await backend.close()
        raise InputError(f"--partition {','.join(partitions)}: Slurm shows no node with GPUs there")
    return backend
