"""The constraints that a state stands for: its queues, reservations, permitted sizes, and nodes of others."""

from math import inf

from stretto.model import Constraints
from stretto.model.constraints import LEAD_S
from stretto.model.queue import parents_of, with_quotas
from stretto.service.state.shares import fair_share_of
from stretto.service.state.state import State


def constraints_of(state: State, now_s: float) -> Constraints:
    """What decisions must keep to now."""
    reservations = tuple(
        reservation for _, reservation in sorted(state.reservations.items()) if reservation.until_s > now_s
    )
    quotas_kept = state.configured.quotas == "kept"
    queues = with_quotas(state.queues, capacity_of(state), counts_parts=quotas_kept)
    parents = parents_of(state.queues)
    sizes = dict(state.sized)  # a copy: jobs come and end while a decision is being made
    staying = {name: state.jobs[name].job for name in state.staying()}
    others = {index: node.others for index, node in enumerate(state.nodes) if node.others and node.up}
    whole = state.configured.workers == "whole"
    act = state.configured.priorities == "preempt"
    fair = fair_share_of(state, now_s) if state.configured.fair_share_half_life_s else None
    if not reservations:
        return Constraints(
            queues,
            sizes,
            staying=staying,
            others=others,
            priorities_act=act,
            quotas_kept=quotas_kept,
            parents=parents,
            whole_workers=whole,
            fair_share=fair,
        )
    lasting_s: dict[str, float] = {}
    grace_s = 0.0
    for record in state.open_jobs():
        if record.accounting.held_gpus:
            grace_s = max(grace_s, record.spec.grace_period_s)
        if not record.job.preemptible:
            whole_s = record.spec.expected_time_s or record.spec.max_time_s
            lasting_s[record.id] = whole_s if whole_s else inf
    return Constraints(
        queues,
        sizes,
        reservations,
        lasting_s,
        LEAD_S + grace_s,
        staying=staying,
        others=others,
        priorities_act=act,
        quotas_kept=quotas_kept,
        parents=parents,
        whole_workers=whole,
        fair_share=fair,
    )


def capacity_of(state: State) -> int:
    """GPUs that there are for jobs."""
    return sum(node.gpus - node.others for node in state.nodes if node.up and node.is_ours)
