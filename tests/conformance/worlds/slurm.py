"""A real Slurm of three nodes on this machine; services reach it through commands that may be slow."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.backends.slurm import cluster
from tests.backends.slurm.cluster import SlurmCluster
from tests.conformance.world import CannotRun, World

from stretto.backends.protocol import Backend
from stretto.backends.slurm.backend import open_slurm
from stretto.backends.slurm.options import SlurmOptions

COMMANDS = ("sbatch", "scancel", "squeue", "scontrol", "sinfo")

# While the file is there, answers come late, and one in four is lost after the command was carried out.
COMMAND = """#!/bin/sh
[ -e {flag} ] || exec {program} "$@"
sleep 0.15
{program} "$@" >{flag}.$$ 2>&1
status=$?
if [ $(($(od -An -N1 -tu1 /dev/urandom) % 4)) -eq 0 ]; then
  rm -f {flag}.$$
  echo "{name}: error: Socket timed out on send/recv operation" >&2
  exit 1
fi
cat {flag}.$$
rm -f {flag}.$$
exit $status
"""


@dataclass
class SlurmWorld:
    """The cluster, found through the environment of this process and of those that it starts."""

    folder: Path
    name: str = "slurm"
    lacks: Mapping[str, str] = field(default_factory=dict)
    patience_s: float = 120.0
    program: Sequence[str] = ("-m", "stretto.cli.app")
    serve: Sequence[str] = ("--backend", "slurm")
    slurm: SlurmCluster = field(init=False)
    before: dict[str, str | None] = field(default_factory=dict)

    def start(self) -> None:
        """Start Slurm, and put its commands where services find them."""
        self.slurm = SlurmCluster(self.folder / "cluster").start()
        bin_ = self.folder / "bin"
        bin_.mkdir()
        for name in COMMANDS:
            program = shutil.which(name, path=cluster.programs())
            path = bin_ / name
            path.write_text(COMMAND.format(flag=self.flag, program=program, name=name))
            path.chmod(0o755)
        environment = {**self.slurm.environment, "PATH": f"{bin_}:{os.environ['PATH']}"}
        for name, value in environment.items():
            self.before[name] = os.environ.get(name)
            os.environ[name] = value

    @property
    def flag(self) -> Path:
        """While this is there, commands are slow."""
        return self.folder / "slow"

    async def open(self) -> Backend:
        """A new connection."""
        return await open_slurm(SlurmOptions(), "conformance", self.folder / "shared")

    def nodes(self) -> Sequence[str]:
        """Two nodes of one type, and one of another."""
        return tuple(self.slurm.gpus)

    async def kill_node(self, name: str) -> None:
        """SIGKILL to slurmd and all that ever came of it; Slurm finds out by itself."""
        await asyncio.to_thread(self.slurm.kill_node, name)

    async def return_node(self, name: str) -> None:
        """Start slurmd."""
        self.slurm.start_node(name)

    @asynccontextmanager
    async def unreachable(self) -> AsyncIterator[None]:
        """Suspend the controller."""
        with self.slurm.suspended():
            yield

    @asynccontextmanager
    async def slow(self) -> AsyncIterator[None]:
        """Commands that lose answers."""
        self.flag.touch()
        try:
            yield
        finally:
            self.flag.unlink()

    async def repair(self) -> None:
        """Restart a controller that counts GPUs as in use which no job has."""
        if self.slurm.has_lost_gpus():
            await asyncio.to_thread(self.slurm.restart_controller)

    async def left(self) -> Sequence[str]:
        """Jobs that Slurm has not ended, and processes of nodes beside slurmd."""
        jobs = await asyncio.to_thread(self.slurm.jobs)
        below = [f"process {one.pid} of {name}" for name in self.nodes() for one in self.slurm.below(name)]
        return [*(f"Slurm job {job}" for job in jobs), *below]

    def forget_workers(self) -> None:
        """Nothing is kept: services know their own workers from those of others."""

    async def close(self) -> None:
        """End Slurm; raises where a job or process is left."""
        jobs = self.slurm.jobs()
        left = self.slurm.close()
        for name, value in self.before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        assert not jobs + left, f"left behind: {jobs + left}"


def begin(folder: Path) -> World:
    """Three nodes of two GPUs each."""
    world = SlurmWorld(folder)
    try:
        world.start()
    except cluster.CannotRun as why:
        raise CannotRun(str(why)) from None
    except BaseException:
        world.slurm.close()
        raise
    return world
