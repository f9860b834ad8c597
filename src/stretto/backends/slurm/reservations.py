"""Nodes of lenders whose work runs in Slurm: while one is on loan, it is reserved for the service's user.

A reservation keeps others' new jobs away and ends none that runs. It is made for one node, so that nodes come
and go one by one. Whose a node is stands in a file beside the runs: Slurm itself remembers only reservations.
"""

import asyncio
import getpass
import hashlib
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from stretto.agent import run_directory, supervisor
from stretto.backends.protocol import BackendUnreachable
from stretto.backends.slurm.client import Commands, Refusal

ABSENT = (
    "requested reservation is invalid",
    "not found",
    "no such",
)  # what Slurm says of one that is not there
LONGEST_NAME = 60  # of a reservation; chosen: below what Slurm's tables show


@dataclass
class Reservations:
    """Of one service. Raises BackendUnreachable where Slurm refuses, or the file cannot be written."""

    commands: Commands
    service: str
    path: Path

    async def lenders(self) -> dict[str, str]:
        """By node that belongs to a lender: its lender while it is there, "" while it is on loan."""
        with suppress(OSError, run_directory.Damaged):
            known = await asyncio.to_thread(run_directory.read_json, self.path)
            return {str(node): str(lender) for node, lender in (known or {}).items()}
        return {}

    async def hand_over(self, node: str, to: str | None) -> None:
        """Release a node that goes to a lender; reserve one that is on loan; forget one of no lender."""
        name = f"ReservationName={self.name_of(node)}"
        if to is None:
            await self._scontrol("delete", name)  # first: what Slurm refuses is asked for again
            await self._write(node, None)
            return
        if to:
            await self._write(node, to)  # first: from here on nothing of ours starts there
            await self._scontrol("delete", name)
            return
        if not await self._scontrol("-o", "show", "reservation", self.name_of(node)):
            of_us = (f"Nodes={node}", f"Users={getpass.getuser()}", "StartTime=now", "Duration=UNLIMITED")
            await self._scontrol("create", "reservation", name, *of_us, "Flags=IGNORE_JOBS")
        await self._write(node, "")

    def name_of(self, node: str) -> str:
        """The reservation of a node, which no other service has."""
        mark = hashlib.sha256(f"{self.service} {node}".encode()).hexdigest()[:8]
        return f"stretto-{re.sub(r'[^A-Za-z0-9-]', '-', node)[:LONGEST_NAME]}-{mark}"

    async def _scontrol(self, *words: str) -> str:
        """What Slurm answers; "" where there is no such reservation."""
        try:
            return await self.commands.run("scontrol", *words)
        except Refusal as refusal:
            if any(sign in str(refusal).lower() for sign in ABSENT):
                return ""
            raise BackendUnreachable(f"scontrol {' '.join(words)}: {refusal}") from None

    async def _write(self, node: str, lender: str | None) -> None:
        lenders = {name: whose for name, whose in (await self.lenders()).items() if name != node}
        if lender is not None:
            lenders[node] = lender
        try:
            await asyncio.to_thread(supervisor.write_durably, self.path, lenders)
        except OSError as failure:
            raise BackendUnreachable(f"whose nodes are whose cannot be written down: {failure}") from failure
