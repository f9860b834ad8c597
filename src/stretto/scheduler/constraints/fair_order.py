"""A decision over jobs in the order of fair share: the policy breaks its ties by it."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from stretto.model import FairShare, IntArray, JobTable, Plan, Reasons, Snapshot, account_of
from stretto.scheduler.constraints.evidence import Evidence
from stretto.scheduler.constraints.tables import some_of
from stretto.scheduler.fair_share import in_fair_order


def decide_in_fair_order(snapshot: Snapshot, decide: Callable[[Snapshot], Plan]) -> Plan:
    """One decision, with the jobs that wait shown by fair share; without an effect where one user is alone.

    Whoever holds GPUs comes first, as before: nobody is stopped only because somebody else is further behind.
    """
    fair = snapshot.constraints.fair_share
    plain = replace(snapshot, constraints=replace(snapshot.constraints, fair_share=None))
    order = None if fair is None else fair_rows(snapshot.jobs, fair)
    if order is None:
        return decide(plain)
    plan = decide(replace(plain, jobs=some_of(snapshot.jobs, order, {}, snapshot.placement)))
    return replace(plan, jobs=snapshot.jobs, why=_by_row_before(plan.why, order))


def fair_rows(jobs: JobTable, fair: FairShare) -> IntArray | None:
    """(jobs,) rows by fair share; None where it changes nothing."""
    if not len(jobs):
        return None
    accounts = [account_of(jobs[row]) for row in range(len(jobs))]
    if not fair.matters_to(accounts):
        return None
    order = in_fair_order(jobs, accounts, fair)
    return None if (order == np.arange(len(jobs))).all() else order


def _by_row_before(why: Reasons, order: IntArray) -> Reasons:
    code = np.empty_like(why.code)
    code[order] = why.code
    return Reasons(code, Evidence({int(order[row]): (why.evidence, row) for row in why.evidence}))
