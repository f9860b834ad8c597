"""A decision by fair share: jobs in its order, by which the policy breaks ties, and limits of accounts."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from stretto.model import IntArray, JobTable, Plan, Reasons, Snapshot
from stretto.scheduler.asking import Ask, ask_policy
from stretto.scheduler.components import Scheduler
from stretto.scheduler.constraints.fair_limits import FairLimits
from stretto.scheduler.constraints.offers import Sizes
from stretto.scheduler.constraints.tables import reordered
from stretto.scheduler.fair_share import Accounts, in_fair_order


def decide_in_fair_order(
    snapshot: Snapshot, scheduler: Scheduler, decide: Callable[[Snapshot, Ask], Plan]
) -> Plan:
    """One decision, with the jobs that wait shown by fair share; without an effect where one user is alone.

    Whoever holds GPUs comes first, as before: nobody is stopped only because somebody else is further behind.
    """
    ask: Ask = partial(ask_policy, scheduler=scheduler)
    fair = snapshot.constraints.fair_share
    plain = replace(snapshot, constraints=replace(snapshot.constraints, fair_share=None))
    accounts = Accounts.of(snapshot.jobs.requests.accounts[snapshot.jobs.rows].tolist())
    if fair is None or not fair.matters_to(accounts.names):
        return decide(plain, ask)
    if fair.limits:
        sizes = Sizes(snapshot.constraints) if _sizes_jobs(scheduler, snapshot) else None
        ask = FairLimits(ask, fair, _by_request(snapshot.jobs, accounts), sizes)
    order = in_fair_order(snapshot.jobs, accounts, fair)
    if (order == np.arange(len(order))).all():
        return decide(plain, ask)
    plan = decide(replace(plain, jobs=reordered(snapshot.jobs, order)), ask)
    return replace(plan, jobs=snapshot.jobs, why=_by_row_before(plan.why, order))


def _sizes_jobs(scheduler: Scheduler, snapshot: Snapshot) -> bool:
    """Whether the policy gives jobs other sizes than they ask for, so that one made smaller grows again."""
    return len(scheduler.policy.configurations(snapshot.cluster)) > 0


def _by_request(jobs: JobTable, accounts: Accounts) -> Accounts:
    """The accounts by position among the requests, which stay what they are where fewer jobs are shown."""
    of_request = np.full(len(jobs.requests.jobs), -1, dtype=np.int64)
    of_request[jobs.rows] = accounts.of_row
    return Accounts(accounts.names, of_request)


def _by_row_before(why: Reasons, order: IntArray) -> Reasons:
    code, place = np.empty_like(why.code), np.empty_like(order)
    code[order], place[order] = why.code, np.arange(len(order))
    return Reasons(code, Reordered(why.evidence, order, place))


@dataclass(frozen=True, eq=False)
class Reordered(Mapping[int, str]):
    """What is said of each row, looked up where it was shown: thousands may wait."""

    evidence: Mapping[int, str]  # by row as shown
    order: IntArray  # (jobs,) rows by row as shown
    place: IntArray  # (jobs,) rows as shown by row

    def __getitem__(self, row: int) -> str:
        """What is said of one row."""
        return self.evidence[int(self.place[row])]

    def __iter__(self) -> Iterator[int]:
        """Rows of which something is said."""
        return iter(self.order[list(self.evidence)].tolist())

    def __len__(self) -> int:
        """How many these are."""
        return len(self.evidence)
