"""Fair share as a limit: accounts that have their share give way while others wait for theirs.

Shares first order jobs: those of an account that is further behind come first where a policy breaks ties.
An order decides little under a policy that weighs all jobs at once, or gives all of them turns. So a plan may
leave an account below its share, with jobs that wait. Then the policy is asked again without what it gave to
accounts beyond theirs. Which jobs of an account have its share is the policy's choice.

No job is stopped for that. What an account beyond its share loses are starts and growth. Where the policy
sizes jobs and can give GPUs back, it also loses those that its jobs hold beyond their least size. Where no
other plan is fairer, the first one holds.
"""

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from stretto.model import (
    Allocation,
    BoolArray,
    FairShare,
    IntArray,
    Job,
    JobId,
    JobTable,
    Plan,
    Reasons,
    Snapshot,
    Why,
    actions_between,
    gpus_by_type,
)
from stretto.scheduler.components import Scheduler, propose
from stretto.scheduler.constraints.job_rows import select_jobs
from stretto.scheduler.constraints.sizes import PermittedSizes, shrink_allocation
from stretto.scheduler.fair_share import Accounts, entitled_gpus

MAX_ATTEMPTS = 2  # the second leaves the policy no choice among jobs of accounts that are behind


@dataclass(frozen=True, eq=False)
class FairLimits:
    """What limits accounts to their shares while others wait for theirs."""

    fair: FairShare
    accounts: Accounts  # by position among the requests
    sizes: PermittedSizes | None  # None: the policy gives jobs what they ask for, or nothing

    @classmethod
    def of(
        cls, snapshot: Snapshot, fair: FairShare, accounts: Accounts, scheduler: Scheduler
    ) -> "FairLimits":
        """accounts: by row of the snapshot. Positions among the requests stay where fewer jobs are shown."""
        jobs = snapshot.jobs
        of_request = np.full(len(jobs.requests.jobs), -1, dtype=np.int64)
        of_request[jobs.rows] = accounts.of_row
        # A policy that has configurations sizes jobs itself: one that was made smaller grows again.
        sizes_jobs = len(scheduler.policy.configurations(snapshot.cluster)) > 0
        sizes = PermittedSizes(snapshot.constraints) if sizes_jobs else None
        return cls(fair, Accounts(accounts.names, of_request), sizes)


def propose_fairly(snapshot: Snapshot, scheduler: Scheduler, limits: FairLimits | None) -> Plan:
    """The policy's plan; the fairest of a few where accounts lack some of their share."""
    if limits is None:
        return propose(snapshot, scheduler)
    first = SharedOut(propose(snapshot, scheduler), snapshot, limits.accounts, limits.sizes)
    if not first.may_be_unfair:
        return first.plan
    first.entitled = _entitled(first, limits.fair)
    # Again without what some have beyond their shares, as long as others lack some of theirs.
    best = last = first
    for attempt in range(MAX_ATTEMPTS):
        reduced = last.without_excess(strict=attempt > 0)
        if reduced is None:
            break
        last = _propose_again(reduced, first, scheduler)
        best = min(best, last, key=_unfairness)
    # What is left idle by that goes to those that it is enough for.
    filled = best.with_idle() if best.gpus.sum() < first.gpus.sum() else None
    if filled is not None:
        best = min(best, _propose_again(filled, first, scheduler), key=_unfairness)
    return best.plan


def _entitled(proposal: "SharedOut", fair: FairShare) -> IntArray:
    """(accounts,) GPUs, of all that jobs of this snapshot may have together.

    What the policy gives jobs beyond their least size counts as asked for; no job can ask for more of it.
    """
    account, least, names = proposal.account, proposal.least, proposal.accounts.names
    snapshot = proposal.snapshot
    served, waits = np.flatnonzero(proposal.gpus > 0), np.flatnonzero(proposal.waits)
    beyond_least = np.repeat(account[served], proposal.gpus[served] - least[served])
    # What accounts hold elsewhere counts, too: on nodes and in levels that are not asked about here.
    held_here = np.bincount(account, snapshot.jobs.held_gpus, len(names)).tolist()
    held_elsewhere = {
        name: max(fair.held_gpus.get(name, 0.0) - gpus, 0.0)
        for name, gpus in zip(names, held_here, strict=True)
    }
    return entitled_gpus(
        max(int(snapshot.capacity.sum()), int(proposal.gpus.sum())),
        np.concatenate((least[served], least[waits], np.ones_like(beyond_least))),
        Accounts(names, np.concatenate((account[served], account[waits], beyond_least))),
        replace(fair, held_gpus={**fair.held_gpus, **held_elsewhere}),
    )


def _propose_again(reduced: "Reduced", first: "SharedOut", scheduler: Scheduler) -> "SharedOut":
    """The policy's plan when it is shown less, as one for the whole snapshot."""
    whole = first.snapshot
    placement = whole.placement.changed(reduced.changes) if reduced.changes else whole.placement
    jobs = select_jobs(whole.jobs, reduced.rows, reduced.requests, placement)
    plan = propose(replace(whole, jobs=jobs, placement=placement), scheduler)
    return SharedOut(_for_all_jobs(plan, reduced, first), whole, first.accounts, first.sizes, first.entitled)


def _unfairness(proposal: "SharedOut") -> tuple[int, int]:
    return proposal.unfairness


def _for_all_jobs(plan: Plan, reduced: "Reduced", first: "SharedOut") -> Plan:
    """A plan for some of the jobs as one for all; the first plan says when to ask again at the latest."""
    whole, before = first.plan, first.snapshot.placement
    jobs = dict.fromkeys([*before, *plan.placement])
    changes = {job: now for job in jobs if (now := plan.placement.get(job)) != before.get(job)}
    placement = before.changed(changes) if changes else before
    code = np.where(whole.why.code >= 0, int(Why.OVER_SHARE), whole.why.code)
    code[reduced.rows] = plan.why.code
    wakes = [at_s for at_s in (whole.wake_s, plan.wake_s) if at_s is not None]
    return replace(
        plan,
        actions=actions_between(before, placement),
        placement=placement,
        why=Reasons(code, ShareEvidence(code, reduced.rows, plan.why, first)),
        jobs=first.snapshot.jobs,
        wake_s=min(wakes, default=None),
    )


@dataclass(frozen=True, eq=False)
class Reduced:
    """What the policy is shown when it is asked again."""

    rows: IntArray  # of the snapshot
    requests: Mapping[int, Job]  # by row, with a lower maximum
    changes: Mapping[JobId, Allocation | None]  # what jobs hold then: less, or nothing


@dataclass(eq=False)
class SharedOut:
    """A plan for all jobs of a snapshot: what accounts lack of their shares, what others could give up."""

    plan: Plan
    snapshot: Snapshot
    accounts: Accounts  # by position among the requests
    sizes: PermittedSizes | None  # None: the policy keeps to what jobs ask for
    entitled: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # (accounts,) GPUs

    def __post_init__(self) -> None:
        """Count what every job gets."""
        jobs, code = self.snapshot.jobs, self.plan.why.code
        self.account: IntArray = self.accounts.of_row[jobs.rows]
        self.gpus, self.types = _columns(jobs, self.plan)  # (jobs,), (jobs, types) of which it has some
        least = jobs.min_gpus if self.sizes else jobs.gpus
        self.least: IntArray = np.where(self.gpus > 0, np.minimum(least, self.gpus), least)  # to run at all
        self.waits: BoolArray = (self.gpus == 0) & (code > 0) & (code != Why.RECOVERING)
        new = np.maximum(self.gpus - jobs.held_gpus, 0)
        beyond = np.where(jobs.preemptible, self.gpus - self.least, 0) if self.sizes else new
        self.spare: IntArray = np.maximum(new, beyond)  # (jobs,) GPUs that each could do without

    @property
    def may_be_unfair(self) -> bool:
        """Whether a job waits while one of another account could give way, whatever their shares are."""
        waiting, giving = self.account[self.waits], self.account[self.spare > 0]
        if not waiting.size or not giving.size:
            return False
        return bool((waiting != giving[0]).any() or (giving != giving[0]).any())

    @property
    def held(self) -> IntArray:
        """(accounts,) GPUs that each one would hold."""
        return np.bincount(self.account, self.gpus, len(self.accounts.names)).astype(np.int64)

    @property
    def lacking(self) -> IntArray:
        """(accounts,) GPUs of its share that each lacks; 0 where they are too few for its jobs that wait."""
        least = np.full(len(self.entitled), np.iinfo(np.int64).max)
        np.minimum.at(least, self.account[self.waits], self.least[self.waits])
        missing = self.entitled - self.held
        return np.where(missing >= least, missing, 0)

    @property
    def unfairness(self) -> tuple[int, int]:
        """What accounts lack, then how few GPUs are used: less is better."""
        return int(self.lacking.sum()), -int(self.gpus.sum())

    def without_excess(self, *, strict: bool) -> Reduced | None:
        """Accounts that lack some of their share, and others with what they got, less what is in the way.

        strict: of accounts that lack some, only so many jobs as they are entitled to. None where no account
        lacks anything, or what others have beyond their shares is of no use.
        """
        lacking = self.lacking
        if not lacking.any():
            return None
        # Idle GPUs serve first; others give up the rest of what is lacking, in types that are of use.
        behind = lacking[self.account] > 0
        useful = np.logical_or.reduce(self.snapshot.jobs.allowed_kinds[behind & self.waits], axis=0)
        needed = int(lacking.sum()) - int(self._idle()[useful].sum())
        given_up = self._given(lacking, useful, needed)
        if not given_up.any():
            return None
        waiting = behind & self.waits
        rows = (self.gpus > given_up) | (self._first(waiting) if strict else waiting)
        return self._reduced(rows, self.gpus - given_up, ~behind, np.flatnonzero(useful).tolist())

    def with_idle(self) -> Reduced | None:
        """Those that are served, and those that idle GPUs may be enough for; None where there are none."""
        idle = int(self._idle().sum())
        # Jobs that wait, in order, while there is something idle ...
        waiting = np.flatnonzero(self.waits & (self.least <= idle))
        waiting = waiting[self.least[waiting].cumsum() <= idle]
        idle -= int(self.least[waiting].sum())
        # ... and the rest for growth, where the policy sizes jobs.
        most, served = self.gpus.copy(), self.gpus > 0
        if self.sizes is not None and idle:
            room = np.where(served, np.maximum(self.snapshot.jobs.max_gpus - self.gpus, 0), 0)
            most += np.clip(idle - (room.cumsum() - room), 0, room)
        if not waiting.size and (most == self.gpus).all():
            return None
        rows = served.copy()
        rows[waiting] = True
        return self._reduced(rows, most, served)

    def _given(self, lacking: IntArray, useful: BoolArray, needed: int) -> IntArray:
        """(jobs,) GPUs that jobs give up: of the account that has most beyond its share first.

        There the last job first; starts before growth and what is held. useful: (types,).
        """
        excess = np.where(lacking > 0, 0, self.held - self.entitled)
        given_up = np.zeros_like(self.gpus)
        starts = self.snapshot.jobs.held_gpus == 0
        for number in np.argsort(-excess, kind="stable").tolist():
            left = min(int(excess[number]), needed)
            if left <= 0:
                break
            rows = np.flatnonzero(
                (self.account == number) & (self.spare > 0) & self.types[:, useful].any(axis=1)
            )
            for row in rows[np.lexsort((-rows, ~starts[rows]))].tolist():
                if left > 0:
                    given_up[row] = self._gives(row, left)
                    left -= int(given_up[row])
                    needed -= int(given_up[row])
        return given_up

    def _gives(self, row: int, gpus: int) -> int:
        """How many GPUs one job gives up where so many are needed; it may be more, by its sizes."""
        jobs, planned = self.snapshot.jobs, int(self.gpus[row])
        held, wanted = int(jobs.held_gpus[row]), max(planned - gpus, 0)
        least = int(self.least[row]) if held and self.sizes and jobs.preemptible[row] else held
        size = 0 if self.sizes is None else self.sizes.at_most(jobs[row], max(wanted, least))
        return max(planned - max(size, least), 0)

    def _first(self, waiting: BoolArray) -> BoolArray:
        """(jobs,) of those that wait, the first of each account that fit into what it lacks."""
        chosen, room = np.zeros_like(waiting), self.entitled - self.held
        for row in np.flatnonzero(waiting).tolist():
            number, least = int(self.account[row]), int(self.least[row])
            if least <= room[number]:
                chosen[row] = True
                room[number] -= least
        return chosen

    def _idle(self) -> IntArray:
        """(types,) GPUs that no job would hold."""
        cluster = self.snapshot.cluster
        free = np.where(self.snapshot.usable, self.plan.placement.free, 0)
        return np.bincount(cluster.kind, free, len(cluster.types)).astype(np.int64)

    def _reduced(
        self, rows: BoolArray, most: IntArray, capped: BoolArray, gives: Container[int] = ()
    ) -> Reduced:
        """Some rows, where those that are capped may have no more GPUs than this, and hold no more.

        gives: types of which they give up GPUs before others.
        """
        jobs, before = self.snapshot.jobs, self.snapshot.placement
        most = np.maximum(most, jobs.min_gpus if self.sizes else jobs.gpus)
        requests: dict[int, Job] = {}
        changes: dict[JobId, Allocation | None] = {}
        for row in np.flatnonzero(rows & capped & (most < jobs.max_gpus)).tolist():
            job, size = jobs[row], int(most[row])
            requests[row] = replace(job, max_gpus=size, gpus=min(job.gpus, size))
            allocation = before.get(job.id)
            if allocation is not None and allocation.gpus > size and self.sizes and job.preemptible:
                changes[job.id] = shrink_allocation(allocation, size, allocation, self.snapshot.cluster.kind)
        for row in np.flatnonzero(~rows & (jobs.held_gpus > 0)).tolist():
            changes[jobs.ids[row]] = None  # the policy has stopped it
        return Reduced(np.flatnonzero(rows), requests, changes)


def _columns(jobs: JobTable, plan: Plan) -> tuple[IntArray, BoolArray]:
    """(jobs,) GPUs that a plan gives each job, and (jobs, types) of which they are."""
    cluster = plan.placement.cluster
    gpus, kinds = jobs.held_gpus.copy(), np.arange(len(cluster.types))
    types = jobs.held_kind[:, None] == kinds
    after = {action.job: action.after for action in plan.actions}
    touched = np.fromiter(map(after.__contains__, jobs.ids), dtype=np.bool_, count=len(jobs))
    mixes = jobs.heterogeneous & (gpus > 0)
    for row in np.flatnonzero(touched | mixes).tolist():
        allocation = plan.placement.get(jobs.ids[row])
        gpus[row] = 0 if allocation is None else allocation.gpus
        types[row] = False if allocation is None else np.isin(kinds, [*gpus_by_type(allocation, cluster)])
    return gpus, types


@dataclass(frozen=True, eq=False)
class ShareEvidence(Mapping[int, str]):
    """What is said of each row, put in words when it is read: thousands of jobs may wait."""

    code: IntArray  # (jobs,) values of Why
    shown: IntArray  # rows that were shown when the policy was asked again
    again: Reasons  # of these
    first: SharedOut

    def __getitem__(self, row: int) -> str:
        """What is said of one row."""
        place = int(np.searchsorted(self.shown, row))
        if place < len(self.shown) and self.shown[place] == row:
            return self.again.evidence[place]
        if self.code[row] != Why.OVER_SHARE:
            return self.first.plan.why.evidence[row]
        number = int(self.first.account[row])
        (queue, user), share = self.first.accounts.names[number], self.first.entitled[number]
        return f"{user or 'jobs of no user'} in queue {queue}: entitled to {share} GPUs while others wait"

    def __iter__(self) -> Iterator[int]:
        """Rows of which something is said."""
        hidden = np.ones(len(self.code), dtype=np.bool_)
        hidden[self.shown] = False
        never = self.first.plan.why.evidence
        own = [row for row in np.flatnonzero(hidden).tolist() if self.code[row] > 0 or row in never]
        return iter(sorted((*own, *self.shown[list(self.again.evidence)].tolist())))

    def __len__(self) -> int:
        """How many these are."""
        return sum(1 for _ in self)
