"""The policy asked once: estimate, allocate, check, place. Constraints act around it."""

from dataclasses import replace

import numpy as np

from stretto.model import Placement, Plan, Reasons, Shares, Snapshot, Why, actions_between
from stretto.model.timing import span
from stretto.scheduler.check import check_shares
from stretto.scheduler.components import Scheduler


def propose(snapshot: Snapshot, scheduler: Scheduler) -> Plan:
    """What the policy wants of everything that it is shown. Pure: equal snapshots give equal plans."""
    policy = scheduler.policy
    declared = snapshot.limited_to(policy.views)
    with span("estimate"):
        speeds = scheduler.estimator.estimate(declared, policy.configurations(snapshot.cluster))
    with span("allocate"):
        shares = policy.allocate(declared, speeds)
        check_shares(snapshot, shares)
    with span("place"):
        placement = scheduler.placer.place(snapshot, shares)
        actions = actions_between(snapshot.placement, placement)
    return Plan(
        based_on=snapshot.version,
        actions=actions,
        placement=placement,
        why=_with_fragmented(snapshot, shares, placement),
        jobs=snapshot.jobs,
        memory=shares.memory,
        wake_s=shares.wake_s,
        prices=shares.prices,
        gap=shares.gap,
    )


def _with_fragmented(snapshot: Snapshot, shares: Shares, placement: Placement) -> Reasons:
    """The policy's reasons, and FRAGMENTED for each job that got a share but no place for it."""
    jobs = snapshot.jobs
    starting = np.flatnonzero((shares.gpus > 0) & (jobs.held_gpus == 0)).tolist()
    left_out = [row for row in starting if jobs[row].id not in placement]
    if not left_out:
        return shares.why
    code = shares.why.code.copy()
    code[left_out] = Why.FRAGMENTED
    return replace(shares.why, code=code)
