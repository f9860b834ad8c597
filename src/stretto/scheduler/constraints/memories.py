"""What a policy remembers where it is asked several times in one decision: for each level and each part.

A policy that is asked once finds its own memory, as it is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stretto.model import Job, JobId, Memory, NodeId, Placement


@dataclass(frozen=True)
class LevelMemories:
    """What the policy remembers of each level."""

    by_priority: Mapping[int, Memory]


@dataclass(frozen=True)
class PartMemory:
    """What the policy remembers of nodes that are kept for some jobs."""

    nodes: tuple[NodeId, ...]
    jobs: tuple[JobId, ...]  # that it was asked about there, but for those that have GPUs elsewhere
    memory: Memory  # maybe of several levels


@dataclass(frozen=True)
class PartMemories:
    """What the policy remembers of each part of the cluster that it was asked about."""

    parts: tuple[PartMemory, ...]  # nodes that are kept for some jobs
    rest: Memory  # of all other nodes; maybe of several levels


def of_part(memory: Memory, nodes: tuple[NodeId, ...]) -> Memory:
    """What is remembered of some nodes: of the part that had most of them, else of all nodes before."""
    if not isinstance(memory, PartMemories):
        return memory
    common = [len({*part.nodes} & {*nodes}) for part in memory.parts]
    return memory.parts[common.index(max(common))].memory if any(common) else memory.rest


def of_rest(memory: Memory) -> Memory:
    """What is remembered of all nodes that are kept for no job."""
    return memory.rest if isinstance(memory, PartMemories) else memory


def of_level(memory: Memory, priority: int) -> Memory:
    """What is remembered of one level; one from before there were several is that of each of them."""
    return memory.by_priority.get(priority) if isinstance(memory, LevelMemories) else memory


def of_job(memory: Memory, job: Job) -> Memory:
    """The memory with which the policy was asked about a job, as the policy itself returned it."""
    if isinstance(memory, PartMemories):
        memory = next((part.memory for part in memory.parts if job.id in part.jobs), memory.rest)
    return of_level(memory, job.priority)


def with_parts(rest: Memory, parts: Sequence[PartMemory], placement: Placement) -> Memory:
    """All memories of a decision as one, that of the rest alone where there is nothing else to remember.

    placement: what jobs hold now. A job that was shown kept nodes and got GPUs of others belongs there.
    """
    if all(part.memory is None for part in parts):
        return rest
    index = placement.cluster.node_index

    def is_elsewhere(job: JobId, part: PartMemory) -> bool:
        allocation = placement.get(job)
        return allocation is not None and {index[node] for node in part.nodes}.isdisjoint(allocation.nodes)

    own = [
        PartMemory(part.nodes, tuple(job for job in part.jobs if not is_elsewhere(job, part)), part.memory)
        for part in parts
    ]
    return PartMemories(tuple(own), rest)
