from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
from hypothesis import Phase, given, settings
from tests.drawn import scaled

from stretto.model import BadPlan, NotDeclared, Policy, Shares, Snapshot, Speeds, View
from stretto.policies import POLICIES, load_policy
from stretto.policies.fifo import FirstInFirstOut
from stretto.testing.conformance import PROMISES
from stretto.testing.situations import Situation, situations

VARIANTS: dict[str, Policy] = {
    **{name: load_policy(name) for name in POLICIES},
    "fifo, skipping": load_policy("fifo", skip=True),
    "sjf, skipping": load_policy("sjf", skip=True),
    "edf, not preemptive": load_policy("edf", preemptive=False),
    "tiresias with starvation": load_policy(
        "tiresias", starvation_factor=0.5, queue_bounds_gpu_s=(3_250.0, 7_200.0)
    ),
    "tiresias-gittins, best horizon": load_policy("tiresias-gittins", gittins_supremum=True),
    "gavel, max-min fairness": load_policy("gavel", objective="max-min-fairness"),
    "gavel, finish-time fairness": load_policy("gavel", objective="finish-time-fairness"),
    "gavel, makespan": load_policy("gavel", objective="makespan", head_start=0.0, too_large_per_s=0.0),
}


@pytest.mark.parametrize("promise", PROMISES)
@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=scaled(20), deadline=None)
@given(situation=situations())
def test_every_policy_keeps_its_promise(variant: str, promise: str, situation: Situation) -> None:
    PROMISES[promise](VARIANTS[variant], situation)


@dataclass(frozen=True)
class Broken(FirstInFirstOut):
    """First in, first out, with one thing changed for the worse."""

    breaks: Callable[[Snapshot, Shares], Shares] = lambda snapshot, shares: shares
    name: ClassVar[str] = "broken"

    def allocate(self, snapshot: Snapshot, speeds: Speeds) -> Shares:
        return self.breaks(snapshot, super().allocate(snapshot, speeds))


def stop_everybody(snapshot: Snapshot, shares: Shares) -> Shares:
    return replace(shares, gpus=shares.gpus * 0)


def double(snapshot: Snapshot, shares: Shares) -> Shares:
    return replace(shares, gpus=shares.gpus * 2)


def peek(snapshot: Snapshot, shares: Shares) -> Shares:
    return replace(shares, wake_s=snapshot.now_s + 1 + float(snapshot.jobs.durations.duration_s.sum()))


def count(snapshot: Snapshot, shares: Shares) -> Shares:
    CALLS.append(snapshot)
    return replace(shares, memory=len(CALLS))


def by_order_of_holding(snapshot: Snapshot, shares: Shares) -> Shares:
    first = next(iter(snapshot.placement), None)
    kind = shares.kind.copy()
    kind[[job == first for job in snapshot.jobs.ids]] = -1
    return replace(shares, kind=kind)


def ask_again_at_once(snapshot: Snapshot, shares: Shares) -> Shares:
    return replace(shares, wake_s=snapshot.now_s)


def remember_an_object(snapshot: Snapshot, shares: Shares) -> Shares:
    return replace(shares, memory=object())


CALLS: list[Snapshot] = []


@pytest.mark.parametrize(
    ("promise", "breaks"),
    [
        ("shares_are_feasible", double),
        ("every_job_has_a_row_and_a_reason", stop_everybody),
        ("the_same_snapshot_gives_the_same_shares", count),
        ("the_order_in_which_jobs_are_handed_in_is_irrelevant", by_order_of_holding),
        ("undeclared_columns_are_not_read", peek),
        ("its_memory_is_a_value_and_comes_back", remember_an_object),
        ("non_preemptible_jobs_keep_what_they_hold", stop_everybody),
        ("it_wakes_in_the_future", ask_again_at_once),
    ],
)
def test_a_policy_that_breaks_a_promise_is_found_out(
    promise: str, breaks: Callable[[Snapshot, Shares], Shares]
) -> None:
    @settings(max_examples=300, deadline=None, database=None, derandomize=True, phases=[Phase.generate])
    @given(situation=situations())
    def keeps_it(situation: Situation) -> None:
        PROMISES[promise](Broken(breaks=breaks), situation)

    with pytest.raises((AssertionError, BadPlan, NotDeclared, TypeError)):
        keeps_it()


def test_a_policy_that_declares_what_it_reads_may_read_it() -> None:
    @dataclass(frozen=True)
    class Open(Broken):
        views: ClassVar[frozenset[View]] = frozenset({View.ORACLE_DURATION})

    @settings(max_examples=scaled(20), deadline=None)
    @given(situation=situations())
    def keeps_it(situation: Situation) -> None:
        PROMISES["undeclared_columns_are_not_read"](Open(breaks=peek), situation)

    keeps_it()
