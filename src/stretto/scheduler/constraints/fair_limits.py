"""Fair share as a limit: accounts that have their share give way while others wait for theirs.

An order of jobs decides little under a policy that weighs all jobs at once, or gives everybody turns. So
where an answer leaves an account below its share, with jobs that wait, the policy is asked again without what
it gave to accounts beyond theirs. Which jobs of an account have its share is the policy's choice.

Nobody is stopped for that. What an account beyond its share loses are starts and growth, and GPUs that its
jobs hold beyond their least size, where the policy sizes jobs and can give them back. Where the second answer
is no fairer, the first one holds.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from stretto.model import FairShare, IntArray, Plan, Reasons, Snapshot, Why, actions_between
from stretto.scheduler.asking import Ask
from stretto.scheduler.constraints.fair_answers import Answer, Shown
from stretto.scheduler.constraints.offers import Sizes
from stretto.scheduler.constraints.tables import some_of
from stretto.scheduler.fair_share import Accounts, entitled_gpus

MOST_TRIES = 2  # the second leaves the policy no choice among jobs of accounts that are behind


@dataclass(frozen=True, eq=False)
class FairLimits:
    """Asks the policy so that accounts keep to their shares while others wait for theirs."""

    ask: Ask
    fair: FairShare
    accounts: Accounts  # by position among the requests
    sizes: Sizes | None  # that jobs may have; None: the policy gives them what they ask for, or nothing

    def __call__(self, snapshot: Snapshot) -> Plan:
        """The policy's answer; the fairest of a few where accounts lack some of their share."""
        first = Answer(self.ask(snapshot), snapshot, self.accounts, self.sizes)
        if not first.may_be_unfair:
            return first.plan
        first.entitled = self._entitled(first)
        best = last = first
        for tries in range(MOST_TRIES):
            shown = last.without_excess(strict=tries > 0)
            if shown is None:
                break
            last = self._asked_again(shown, first)
            best = min(best, last, key=_unfairness)
        filled = best.with_idle() if best.gpus.sum() < first.gpus.sum() else None
        if filled is not None:
            best = min(best, self._asked_again(filled, first), key=_unfairness)
        return best.plan

    def _entitled(self, answer: Answer) -> IntArray:
        """(accounts,) GPUs, of all that jobs of this snapshot may have together.

        What the policy gives jobs beyond their least size counts as asked for; nobody can ask for more of it.
        """
        account, least, names = answer.account, answer.least, self.accounts.names
        served, waits = np.flatnonzero(answer.gpus > 0), np.flatnonzero(answer.waits)
        more = np.repeat(account[served], answer.gpus[served] - least[served])
        here = np.bincount(account, answer.snapshot.jobs.held_gpus, len(names)).tolist()
        beside = {
            name: max(self.fair.held_gpus.get(name, 0.0) - mine, 0.0)
            for name, mine in zip(names, here, strict=True)
        }
        return entitled_gpus(
            max(int(answer.snapshot.capacity.sum()), int(answer.gpus.sum())),
            np.concatenate((least[served], least[waits], np.ones_like(more))),
            Accounts(names, np.concatenate((account[served], account[waits], more))),
            replace(self.fair, held_gpus={**self.fair.held_gpus, **beside}),
        )

    def _asked_again(self, shown: Shown, first: Answer) -> Answer:
        """The policy's answer when it is shown less, as one for the whole snapshot."""
        whole = first.snapshot
        placement = whole.placement.changed(shown.changes) if shown.changes else whole.placement
        jobs = some_of(whole.jobs, shown.rows, shown.requests, placement)
        plan = _for_all(self.ask(replace(whole, jobs=jobs, placement=placement)), shown, first)
        return Answer(plan, whole, self.accounts, self.sizes, first.entitled)


def _unfairness(answer: Answer) -> tuple[int, int]:
    return answer.unfairness


def _for_all(plan: Plan, shown: Shown, first: Answer) -> Plan:
    """A plan for some of the jobs as one for all; the first answer says when to ask again at the latest."""
    whole, before = first.plan, first.snapshot.placement
    names = dict.fromkeys([*before, *plan.placement])
    changes = {name: now for name in names if (now := plan.placement.get(name)) != before.get(name)}
    placement = before.changed(changes) if changes else before
    code = np.where(whole.why.code >= 0, int(Why.OVER_SHARE), whole.why.code)
    code[shown.rows] = plan.why.code
    wakes = [at_s for at_s in (whole.wake_s, plan.wake_s) if at_s is not None]
    return replace(
        plan,
        actions=actions_between(before, placement),
        placement=placement,
        why=Reasons(code, ShareEvidence(code, shown.rows, plan.why, first)),
        jobs=first.snapshot.jobs,
        wake_s=min(wakes, default=None),
    )


@dataclass(frozen=True, eq=False)
class ShareEvidence(Mapping[int, str]):
    """What is said of each row, put in words when somebody reads it: thousands may wait."""

    code: IntArray  # (jobs,) values of Why
    shown: IntArray  # rows that were shown when the policy was asked again
    again: Reasons  # of these
    first: Answer

    def __getitem__(self, row: int) -> str:
        """What is said of one row."""
        at = int(np.searchsorted(self.shown, row))
        if at < len(self.shown) and self.shown[at] == row:
            return self.again.evidence[at]
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
