"""What a policy remembers of nodes that are reserved, and of the rest, comes back to it."""

import pickle
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from stretto.estimate.estimators import NoEstimate
from stretto.model import (
    NO_CONSTRAINTS,
    ON_CHANGE,
    Allocation,
    Cluster,
    Configurations,
    Constraints,
    JobId,
    Memory,
    Plan,
    Reservation,
    Shares,
    Snapshot,
    Speeds,
    Triggers,
    View,
    Why,
    configurations_from,
    digest,
)
from stretto.model.plan import waiting_for
from stretto.place.consolidate import Relaxed
from stretto.scheduler.constraints.memories import of_job
from stretto.scheduler.round import Scheduler, decide
from stretto.testing.builders import a_cluster, a_job, a_snapshot

JOBS = {"a": a_job("a", user="ann"), "b": a_job("b", user="bob"), "c": a_job("c", user="ann", priority=1)}
RESERVED = Constraints(reservations=(Reservation("r", 0.0, 1e6, nodes=("gpu-0",), user="ann"),))


@dataclass(frozen=True)
class Diary:
    """Gives each job one GPU while there are any, and remembers whom it was ever asked about, in order."""

    name: ClassVar[str] = "diary"
    views: ClassVar[frozenset[View]] = frozenset()
    placer: ClassVar[str] = "relaxed"
    triggers: ClassVar[Triggers] = ON_CHANGE

    def configurations(self, cluster: Cluster) -> Configurations:
        """One."""
        return configurations_from([(1, 1, 0)])

    def allocate(self, snapshot: Snapshot, speeds: Speeds) -> Shares:
        """The first come first."""
        count = len(snapshot.jobs)
        gpus = (np.arange(count) < int(snapshot.capacity.sum())).astype(np.int64)
        why = waiting_for(Why.NO_FREE_GPUS, count)
        memory = (*(snapshot.memory or ()), *snapshot.jobs.ids)
        return Shares(gpus, np.full(count, -1), np.zeros(count, dtype=np.int64), why, memory=memory)


def decided(names: str, rules: Constraints, before: Plan | None = None) -> Plan:
    """A decision about jobs on two nodes of one GPU each, after another one."""
    held: dict[str, Allocation] = {}
    if before is not None:
        held = {name: before.placement[JobId(name)] for name in names if JobId(name) in before.placement}
    memory = None if before is None else before.memory
    jobs = [JOBS[name] for name in names]
    snapshot = a_snapshot(*jobs, cluster=a_cluster(1, 1), allocations=held, memory=memory)
    return decide(replace(snapshot, constraints=rules), Scheduler(NoEstimate(), Diary(), Relaxed()))


def diaries(memory: Memory, names: str) -> list[str]:
    """What the policy remembers where each of these jobs is, as one word each."""
    return ["".join(of_job(memory, JOBS[name])) for name in names]


def test_reserved_nodes_and_the_rest_have_memories_of_their_own() -> None:
    first = decided("ab", RESERVED)
    assert diaries(first.memory, "ab") == ["a", "b"]
    second = decided("ab", RESERVED, first)
    assert diaries(second.memory, "ab") == ["aa", "bb"]


def test_a_part_that_is_new_begins_with_what_is_remembered_of_all_nodes() -> None:
    free = decided("ab", NO_CONSTRAINTS)
    assert free.memory == ("a", "b"), "the policy's own, as long as it is asked once"
    reserved = decided("ab", RESERVED, free)
    assert diaries(reserved.memory, "ab") == ["aba", "abb"]


def test_once_nothing_is_reserved_any_more_the_memory_of_the_rest_goes_on() -> None:
    reserved = decided("ab", RESERVED, decided("ab", RESERVED))
    after = decided("ab", NO_CONSTRAINTS, reserved)
    assert after.memory == ("b", "b", "a", "b")


def test_in_decisions_of_old_logs_nothing_is_remembered_of_reserved_nodes() -> None:
    rules = replace(RESERVED, parts_kept=False)
    plan = decided("ab", rules, decided("ab", rules))
    assert plan.memory == ("b", "b")


def test_levels_of_reserved_nodes_have_memories_of_their_own() -> None:
    plan = decided("abc", RESERVED, decided("abc", RESERVED))
    assert diaries(plan.memory, "c") == ["cc"]
    assert JobId("c") in plan.placement


def test_memories_of_parts_are_values_that_logs_can_compare_and_states_can_keep() -> None:
    first, again, later = decided("ab", RESERVED), decided("ab", RESERVED), decided("b", RESERVED)
    assert digest(first.memory) == digest(again.memory) != digest(later.memory)
    assert pickle.loads(pickle.dumps(first.memory)) == first.memory
