"""What events of lenders change: whose each node is, what is on loan, and how long lenders wait.

A settlement says at once what is on loan. A node changes hands later, once no process of ours is left on it
and its cluster has been told. Jobs that a settlement did not foresee on a returned node wait again.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from stretto.service.state import events as happened
from stretto.service.state.lender_records import LenderRecord
from stretto.service.state.records import NodeRecord
from stretto.service.state.state import State
from stretto.service.state.usage import Cause, CauseKind


def lender_set(state: State, event: happened.LenderSet, now_s: float) -> None:
    """Nodes belong to a lender; of those that it had before and has no more, jobs may use all."""
    for other in state.lenders.values():  # a node belongs to one lender, the latest that was named
        other.nodes = tuple(name for name in other.nodes if name not in event.nodes)
    lender = state.lenders.setdefault(event.name, LenderRecord(event.name, ()))
    lender.nodes, lender.headroom, lender.guarantee_s = event.nodes, event.headroom, event.guarantee_s
    lender.configured |= event.configured  # somebody who changes its guarantee does not make it theirs
    _assign_nodes(state)
    end_loans_unless_settled(state, now_s)
    _note_waits(state, now_s)


def lender_deleted(state: State, event: happened.LenderDeleted, now_s: float) -> None:
    """Its nodes are ours, once its cluster has handed them over."""
    if state.lenders.pop(event.name, None) is not None:
        _assign_nodes(state)


def need_reported(state: State, event: happened.NeedReported, now_s: float) -> None:
    """A lender needs more or fewer of its nodes than before."""
    if (lender := state.lenders.get(event.lender)) is not None:
        lender.report(event.nodes, now_s)
        _note_waits(state, now_s)


def nodes_handed_over(state: State, event: happened.NodesHandedOver, now_s: float) -> None:
    """Nodes are in other hands."""
    for name in event.nodes:
        if (index := state.node_index.get(name)) is not None:
            node = state.nodes[index]
            node.in_hands_of = event.to or ""
            if event.to is None and not node.lender:
                node.marked_for = ""
    _note_waits(state, now_s)
    state.version += 1


def guarantee_missed(state: State, event: happened.GuaranteeMissed, now_s: float) -> None:
    """A wait is longer than it should be; it is said once."""
    if (lender := state.lenders.get(event.lender)) is not None and lender.asked_s == event.asked_s:
        lender.missed = True


def settle(state: State, loans: Mapping[str, Any], now_s: float) -> None:
    """What is on loan from now on. Jobs that still are to hold GPUs of a returned node wait again."""
    for name in loans.get("lent", ()):
        _node(state, name).on_loan = True
    for name in loans.get("returned", ()):
        _call_back(state, name, now_s)
    if loans.get("lent") or loans.get("returned"):
        state.version += 1


def end_loans_unless_settled(state: State, now_s: float) -> None:
    """Where the scheduler that decides settles no loans, what is on loan goes back."""
    if any(key.startswith("lend.") for key in state.configured.settings):
        return
    for node in state.nodes:
        if node.lender and node.on_loan:
            _call_back(state, node.name, now_s)


def place_new_node(state: State, node: NodeRecord) -> None:
    """A node that shows itself for the first time may have been named by a lender before."""
    node.lender = next((lender.name for lender in state.lenders.values() if node.name in lender.nodes), "")
    node.marked_for = node.lender or node.marked_for


def note_waits(state: State, node: NodeRecord, now_s: float) -> None:
    """A node has come or gone: its lender may lack it, or have what it needs of those that are left."""
    if node.lender:
        _note_waits(state, now_s)


def _call_back(state: State, name: str, now_s: float) -> None:
    node, index = _node(state, name), state.node_index[name]
    node.on_loan = False
    for job, _ in state.allocations_on(index):
        record = state.jobs[job]
        record.why = f"node {name} went back to lender {node.lender}"
        state.release(record, now_s, Cause(CauseKind.LENDER))


def _node(state: State, name: str) -> NodeRecord:
    return state.nodes[state.node_index[name]]


def _assign_nodes(state: State) -> None:
    """Every node belongs to the lender that names it. Where jobs are on one, it is on loan from the first."""
    lender_of = {name: lender.name for lender in state.lenders.values() for name in lender.nodes}
    for index, node in enumerate(state.nodes):
        lender = lender_of.get(node.name, "")
        if node.lender != lender:
            node.lender, node.on_loan = lender, bool(lender and state.allocations_on(index))
            node.marked_for = lender or node.marked_for
            state.nodes_changed = True
    state.version += 1


def _note_waits(state: State, now_s: float) -> None:
    counts = nodes_of_lenders(state.nodes)
    for lender in state.lenders.values():
        up, at_home = counts.get(lender.name, (0, 0))
        lender.note_wait(lender.lacking(up, at_home), now_s)


def nodes_of_lenders(nodes: Iterable[NodeRecord]) -> dict[str, tuple[int, int]]:
    """By lender: its nodes that are up, and how many of them are in its hands."""
    counts: dict[str, tuple[int, int]] = {}
    for node in nodes:
        if node.lender and node.up:
            up, at_home = counts.get(node.lender, (0, 0))
            counts[node.lender] = up + 1, at_home + (node.in_hands_of == node.lender)
    return counts
