"""A decision by fair share: jobs in its order, by which the policy breaks ties, and limits of accounts."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from stretto.model import Account, FairShare, IntArray, JobTable, Plan, Reasons, Snapshot, account_of
from stretto.scheduler.asking import Ask, ask_policy
from stretto.scheduler.components import Scheduler
from stretto.scheduler.constraints.evidence import Evidence
from stretto.scheduler.constraints.fair_answers import Accounts
from stretto.scheduler.constraints.fair_limits import FairLimits
from stretto.scheduler.constraints.offers import Sizes
from stretto.scheduler.constraints.tables import some_of
from stretto.scheduler.fair_share import in_fair_order


def decide_in_fair_order(
    snapshot: Snapshot, scheduler: Scheduler, decide: Callable[[Snapshot, Ask], Plan]
) -> Plan:
    """One decision, with the jobs that wait shown by fair share; without an effect where one user is alone.

    Whoever holds GPUs comes first, as before: nobody is stopped only because somebody else is further behind.
    """
    ask: Ask = partial(ask_policy, scheduler=scheduler)
    fair = snapshot.constraints.fair_share
    plain = replace(snapshot, constraints=replace(snapshot.constraints, fair_share=None))
    accounts = [account_of(snapshot.jobs[row]) for row in range(len(snapshot.jobs))]
    if fair is None or not fair.matters_to(accounts):
        return decide(plain, ask)
    if fair.limits:
        sizes = Sizes(snapshot.constraints) if _sizes_jobs(scheduler, snapshot) else None
        ask = FairLimits(ask, fair, Accounts.of(snapshot.jobs, accounts), sizes)
    order = fair_rows(snapshot.jobs, accounts, fair)
    if order is None:
        return decide(plain, ask)
    plan = decide(replace(plain, jobs=some_of(snapshot.jobs, order, {}, snapshot.placement)), ask)
    return replace(plan, jobs=snapshot.jobs, why=_by_row_before(plan.why, order))


def _sizes_jobs(scheduler: Scheduler, snapshot: Snapshot) -> bool:
    """Whether the policy gives jobs other sizes than they ask for, so that one made smaller grows again."""
    return len(scheduler.policy.configurations(snapshot.cluster)) > 0


def fair_rows(jobs: JobTable, accounts: Sequence[Account], fair: FairShare) -> IntArray | None:
    """(jobs,) rows by fair share; None where it changes nothing."""
    order = in_fair_order(jobs, accounts, fair)
    return None if (order == np.arange(len(jobs))).all() else order


def _by_row_before(why: Reasons, order: IntArray) -> Reasons:
    code = np.empty_like(why.code)
    code[order] = why.code
    return Reasons(code, Evidence({int(order[row]): (why.evidence, row) for row in why.evidence}))
