"""A command that prints what a lender needs."""

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite

EVERY_S = 15.0  # between two runs of a command; chosen
COMMAND_S = 30.0  # that one may take; chosen

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CommandFeed:
    """A command for the shell that prints how many nodes are needed."""

    command: str
    every_s: float = EVERY_S

    async def need_at(self, now_s: float, nodes: int) -> tuple[float | None, float]:
        """What the command prints; not known where it fails, takes too long, or prints something else."""
        process = await asyncio.create_subprocess_shell(
            self.command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE
        )
        try:
            async with asyncio.timeout(COMMAND_S):
                printed, _ = await process.communicate()
        except TimeoutError:
            log.warning(
                "the need of a lender is not known: %s took longer than %g s", self.command, COMMAND_S
            )
            return None, self.every_s
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        with suppress(ValueError):
            need = float(printed.decode(errors="replace"))
            if process.returncode == 0 and isfinite(need) and need >= 0:
                return need, self.every_s
        log.warning(
            "the need of a lender is not known: expected a number of nodes of %s, got %.80r and status %s",
            self.command,
            printed,
            process.returncode,
        )
        return None, self.every_s
