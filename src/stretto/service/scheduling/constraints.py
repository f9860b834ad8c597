"""The constraints that a state stands for: queues, reservations, sizes, budgets, and nodes of others."""

from math import inf

from stretto.model import Constraints, JobId
from stretto.model.constraints import LEAD_S, KeptNodes
from stretto.model.queue import parents_of, with_quotas
from stretto.service.state.on_hold import holds_at, until_s
from stretto.service.state.shares import fair_share_of
from stretto.service.state.state import State


def constraints_of(state: State, now_s: float) -> Constraints:
    """What decisions must keep to now."""
    reservations = tuple(
        reservation for _, reservation in sorted(state.reservations.items()) if reservation.until_s > now_s
    )
    quotas_kept = state.configured.quotas == "kept"
    queues = with_quotas(state.queues, state.node_facts.capacity, counts_parts=quotas_kept)
    parents = parents_of(state.queues)
    sizes = dict(state.sized)  # a copy: jobs come and end while a decision is being made
    staying = {name: state.jobs[name].job for name in state.staying()}
    workers = state.configured.workers
    act = state.configured.priorities == "preempt"
    fair = fair_share_of(state, now_s) if state.configured.fair_share_half_life_s else None
    lasting_s, grace_s = _of_reservations(state) if reservations else ({}, 0.0)
    return Constraints(
        queues,
        sizes,
        reservations,
        lasting_s,
        LEAD_S + grace_s,
        staying=staying,
        others=state.node_facts.others,
        priorities_act=act,
        quotas_kept=quotas_kept,
        parts_kept=state.configured.reservations == "kept",
        shows_usage=state.configured.usage == "shown",
        parents=parents,
        whole_workers=workers != "split",
        ranges_kept=workers == "in range",
        going_on_until_s=_going_on(state, now_s),
        kept=tuple(
            KeptNodes(nodes, jobs, _taint_words(state, nodes[0])) for nodes, jobs in state.tolerated()
        ),
        fair_share=fair,
    )


def _taint_words(state: State, node: int) -> str:
    return f"nodes take only jobs that tolerate {', '.join(state.nodes[node].taints)}"


def _of_reservations(state: State) -> tuple[dict[str, float], float]:
    """How long jobs run that cannot be moved, and the longest grace period of those that hold GPUs."""
    lasting_s: dict[str, float] = {}
    grace_s = 0.0
    for record in state.open_jobs():
        if record.accounting.held_gpus:
            grace_s = max(grace_s, record.spec.grace_period_s)
        if not record.job.preemptible:
            whole_s = record.spec.expected_time_s or record.spec.max_time_s
            lasting_s[record.id] = whole_s if whole_s else inf
    return lasting_s, grace_s


def _going_on(state: State, now_s: float) -> dict[JobId, float]:
    """Jobs that hold GPUs while a budget of theirs is used up, and until when it is."""
    if (hold_of := holds_at(state, now_s)) is None:
        return {}
    holds = ((name, hold_of(state.jobs[name])) for name in state.placement or ())
    return {name: until_s(state, hold[1]) for name, hold in holds if hold is not None}
