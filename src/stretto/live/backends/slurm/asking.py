"""The questions and orders that Slurm gets, each one command, in whatever way its version can answer."""

import asyncio
import os
import time
from dataclasses import dataclass, field

from stretto.live.backends.protocol import BackendUnreachable
from stretto.live.backends.slurm import listing
from stretto.live.backends.slurm.commands import Commands, Refusal
from stretto.live.backends.slurm.listing import SlurmJob, SlurmNode

TOO_LONG = (
    1 << 20
)  # characters of JSON for jobs: old versions list everybody's, and columns of ours are cheaper
STRANGE = (AttributeError, KeyError, TypeError, ValueError)  # what reading JSON of an unknown shape raises
GONE = ("invalid job id", "already completing", "already completed", "job has already finished")
NODES_IN_JSON = (("scontrol", "-a", "-d", "show", "nodes", "--json"), ("sinfo", "--all", "--json"))
NODES_IN_TEXT = ("scontrol", "-a", "-o", "-d", "show", "nodes")
JOBS_IN_JSON = ("squeue", "--me", "--all", "--states=all", "--json")
JOBS_IN_COLUMNS = ("squeue", "--me", "--all", "--states=all", "--noheader", f"--format={listing.COLUMNS}")


@dataclass(frozen=True)
class Jobs:
    """Our jobs of Slurm, as they were at some time after `asked_s`."""

    asked_s: float  # monotonic
    jobs: list[SlurmJob]


@dataclass
class Asking:
    """Asks Slurm; remembers which of its ways to answer this version has."""

    commands: Commands
    ways: list[tuple[str, ...]] = field(default_factory=lambda: list(NODES_IN_JSON))  # left to try for nodes
    jobs_in_json: bool = True

    def __post_init__(self) -> None:
        """Without JSON where that is asked for."""
        if not self.commands.options.json:
            self.ways, self.jobs_in_json = [], False

    async def nodes(self) -> list[SlurmNode]:
        """All nodes. Raises BackendUnreachable."""
        while self.ways:
            try:
                text = await self.commands.run(*self.ways[0])
                found = await asyncio.to_thread(listing.nodes_in_json, text)
                if found is not None:
                    return found
            except (Refusal, *STRANGE):
                pass  # no such option in this version, or another shape than any that we know
            self.ways.pop(0)
        try:
            return listing.nodes_in_text(await self.commands.run(*NODES_IN_TEXT))
        except Refusal as refusal:
            raise BackendUnreachable(f"Slurm does not show its nodes: {refusal}") from None

    async def jobs(self) -> Jobs:
        """All jobs of this user that Slurm still knows. Raises BackendUnreachable."""
        asked_s = time.monotonic()
        if self.jobs_in_json:
            try:
                text = await self.commands.run(*JOBS_IN_JSON)
                found = await asyncio.to_thread(listing.jobs_in_json, text)
                if found is not None:
                    self.jobs_in_json = len(text) < TOO_LONG
                    return Jobs(asked_s, [job for job in found if job.user in (None, os.getuid())])
            except (Refusal, *STRANGE):
                pass
            except BackendUnreachable:
                self.jobs_in_json = False  # it may be that everybody's jobs were too many for it
                raise
            self.jobs_in_json = False
        try:
            text = await self.commands.run(*JOBS_IN_COLUMNS)
        except Refusal as refusal:
            raise BackendUnreachable(f"Slurm does not show our jobs: {refusal}") from None
        return Jobs(asked_s, listing.jobs_in_columns(text))

    async def job(self, job_id: int) -> SlurmJob | None:
        """One job in full; None where Slurm knows it no more. Raises BackendUnreachable."""
        try:
            return listing.job_in_text(await self.commands.run("scontrol", "-o", "show", "job", str(job_id)))
        except Refusal as refusal:
            if any(sign in str(refusal).lower() for sign in GONE):
                return None
            raise BackendUnreachable(f"Slurm does not show job {job_id}: {refusal}") from None

    async def submit(self, command: list[str], script: str) -> int:
        """The number of a new job. Raises Refusal, or BackendUnreachable if it may or may not be there."""
        said = await self.commands.run(*command, text=script)
        number = said.strip().split("\n")[-1].split(";")[0]
        if not number.isdecimal():
            raise BackendUnreachable(f"sbatch did not say the number of the job but {said.strip()[:200]!r}")
        return int(number)

    async def cancel(self, job_id: int, *how: str) -> bool:
        """Cancel a job, or send it a signal; False where it is over. Raises BackendUnreachable."""
        try:
            await self.commands.run("scancel", *how, str(job_id))
        except Refusal as refusal:
            if any(sign in str(refusal).lower() for sign in GONE):
                return False
            raise BackendUnreachable(f"scancel of job {job_id}: {refusal}") from None
        return True

    async def signal(self, job_id: int, name: str) -> bool:
        """Send a signal to the batch script of a job, which is a keeper; False where it is over."""
        return await self.cancel(job_id, f"--signal={name}", "--batch")
