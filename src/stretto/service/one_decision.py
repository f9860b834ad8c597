"""One decision of a log taken again: what the policy saw, what it changed, and why the other jobs wait."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from stretto.model import Allocation, InputError, Plan, Snapshot, types_in_words
from stretto.service.eventlog import Recorded, Store, open_store
from stretto.service.scheduling.replay import Load, Replay
from stretto.service.scheduling.scheduler import scheduler_of
from stretto.service.state.events import Decided, event_of
from stretto.service.state.messages import reason_in_words
from stretto.service.state.size_changes import DUE
from stretto.service.state.state import State
from stretto.service.state_snapshots import Kept, begun

MOST_TOLD = 1_000  # jobs that wait, of which a reason is told; chosen


@dataclass(frozen=True)
class OneDecision:
    """A decision as it was written, and as it comes out now."""

    seq: int
    was: Decided
    policy: str
    snapshot: Snapshot
    plan: Plan
    difference: str  # "": it comes out as it was written
    names: dict[str, str] = field(default_factory=dict)  # of jobs, by id
    unix_s: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """What people are shown, as a JSON object."""
        snapshot, plan, cluster = self.snapshot, self.plan, self.snapshot.cluster
        ids = [str(name) for name in plan.jobs.ids]
        waiting = [row for row, name in enumerate(plan.jobs.ids) if name not in plan.placement]
        return {
            "seq": self.seq,
            "at_s": self.was.at_s,
            "unix_s": self.was.at_s + self.unix_s,
            "policy": self.policy,
            "due": list(self.was.due),
            "because": [DUE.get(name, name.replace("_", " ")) for name in self.was.due],
            "same": not self.difference,
            "difference": self.difference,
            "took_ms": self.was.took_ms,
            "gap": plan.gap,
            "jobs": len(snapshot.jobs),
            "types": [
                {
                    "gpu_type": name,
                    "gpus": int(snapshot.capacity[kind]),
                    "free": int(snapshot.free[kind]),
                    "price": None if plan.prices is None else float(plan.prices[kind]),
                }
                for kind, name in enumerate(cluster.type_names)
            ],
            "changes": [
                {
                    "job": str(action.job),
                    "name": self.names.get(str(action.job), ""),
                    "verb": action.verb.value,
                    "before": self._held(action.before),
                    "after": self._held(action.after),
                }
                for action in plan.actions
            ],
            "waiting": len(waiting),
            "waits": [
                {
                    "job": ids[row],
                    "name": self.names.get(ids[row], ""),
                    "reason": plan.why.of(row).name,
                    "why": reason_in_words(plan.why.of(row).name, plan.why.evidence.get(row, "")),
                }
                for row in waiting[:MOST_TOLD]
            ],
        }

    def _held(self, allocation: Allocation | None) -> dict[str, Any]:
        if allocation is None:
            return {"gpus": 0, "gpu_type": ""}
        cluster = self.snapshot.cluster
        return {"gpus": allocation.gpus, "gpu_type": types_in_words(allocation, cluster)}


def decision_again(
    store: Store,
    seq: int,
    load: Load = scheduler_of,
    key: bytes | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> OneDecision:
    """The decision of this number. Raises InputError where there is none, or it cannot be made again.

    key: of the service; with it reading begins at a state that was kept before the decision.
    """
    (recorded, *_) = [*store.read(after=seq - 1, up_to=seq), None] if seq > 0 else [None]
    was = event_of(recorded.kind, recorded.body) if isinstance(recorded, Recorded) else None
    if not isinstance(was, Decided):
        kind = "nothing" if recorded is None else f"an event of kind {recorded.kind}"
        raise InputError(f"decision {seq}: expected the number of a decision, got {kind}")
    kept = Kept(State()) if key is None else begun(store, key, was.seen)
    seen: list[tuple[Snapshot, Plan]] = []

    def watch(number: int, snapshot: Snapshot, plan: Plan) -> None:
        if number == seq:
            seen.append((snapshot, plan))

    replay = Replay(kept.state, load, for_memory=True, memory=kept.memory, always=seq, watch=watch)
    for event in store.read(after=kept.state.seq, up_to=seq):
        replay.next(event)
        if progress is not None:
            progress(event.seq, seq)
    if not seen:
        why = next(iter(replay.not_repeated), "") or next((each.why for each in replay.differences), "")
        raise InputError(f"decision {seq}: it cannot be made again: {why or 'it is left out of the log'}")
    snapshot, plan = seen[-1]
    difference = next((each.words for each in replay.differences if each.seq == seq), "")
    state = replay.state
    known = [state.jobs[name] for name in map(str, plan.jobs.ids) if name in state.jobs]
    names = {record.id: record.spec.name for record in known}
    return OneDecision(seq, was, state.configured.policy, snapshot, plan, difference, names, state.unix_s)


def decision_at(address: str, key: bytes, seq: int) -> dict[str, Any]:
    """The same of the log at an address, as a JSON object: for a process beside the service."""
    with open_store(address, upgrade=False) as store:
        return decision_again(store, seq, key=key).to_json()
