"""How a slice ended, from what its keeper wrote and what Slurm says."""

import os
import time
from collections.abc import Mapping
from typing import Any

from stretto.live.agent import keeper
from stretto.live.backends.slurm import slices
from stretto.live.backends.slurm.listing import SlurmJob

ORDINARY = frozenset({"COMPLETED", "FAILED"})  # states that say no more than the exit status does
LOST = frozenset({"NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED"})  # nobody is left there who could write anything
WORDS = {
    slices.NOT_SEEN: "its node does not see the shared directory",
    slices.TAKEN: "it was submitted twice, and the other one began",
    126: "its node cannot run the keeper",
    127: "its node has no python3",
}


def words_of(job: SlurmJob | None) -> str:
    """How Slurm says a job ended, where that is more than its exit status."""
    if job is None:
        return "Slurm knows it no more"
    if job.states <= ORDINARY:
        return ""
    reason = f": {job.reason}" if job.reason and job.reason.upper() not in job.states else ""
    return f"Slurm says {job.word}{reason}"


def explained(ending: Mapping[str, Any], job: SlurmJob | None, asked: bool) -> dict[str, Any]:
    """What the keeper wrote, with Slurm's words for an end that was not ours.

    asked: whether we had it stopped.
    """
    said = {} if ending.get("why") or asked or job is None else {"why": words_of(job)}
    return {**ending, **said}


def untold(job: SlurmJob | None, began: bool, asked: bool) -> dict[str, Any]:
    """How a slice ended of which no keeper wrote anything, once Slurm says that it is over.

    Never 0: only a keeper knows that, and one that ended well has written it.
    began: whether it may have run.
    """
    wait_status = job.wait_status if job is not None else None
    words = words_of(job)
    told: dict[str, Any] = {"stopped": asked, "started_s": None, "ended_s": time.time(), "lasted_s": None}
    if not began:
        why = f"it was withdrawn before it began. {words}" if words else "it was withdrawn before it began"
        return {**told, **slices.WITHDRAWN, "stopped": asked, "why": why.strip()}
    if wait_status and not (job and job.states & LOST):
        if os.WIFSIGNALED(wait_status):
            said = keeper.status_of(wait_status & 0x7F)
        else:
            said = {"status": wait_status >> 8 & 0xFF or 137, "signal": None}
        why = words or WORDS.get(said["status"], "")
        if said["status"] in (slices.NOT_SEEN, slices.TAKEN):
            said = dict(keeper.KILLED)
        return {**told, **said, "why": why or "its keeper did not say how it ended"}
    return {**told, **keeper.KILLED, "why": words or "its keeper did not say how it ended"}
