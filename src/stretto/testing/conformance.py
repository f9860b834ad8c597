"""What every policy promises, whatever its idea: checks to run over many situations.

For authors of policies: draw from `situations()` of `stretto.testing.situations` and call each of PROMISES.

    @pytest.mark.parametrize("promise", PROMISES)
    @given(situation=situations())
    def test_my_policy_keeps_its_promises(promise, situation):
        PROMISES[promise](MyPolicy(), situation)
"""

from collections.abc import Callable, Mapping

import numpy as np

from stretto.model import JobId, Policy, Shares, Trigger, Why, digest
from stretto.scheduler.check import check_shares
from stretto.testing.situations import Situation

LATER_S = 60.0


def asked(policy: Policy, situation: Situation) -> Shares:
    """What the policy decides when it is shown what it declares, and no more."""
    return policy.allocate(situation.snapshot.limited_to(policy.views), situation.speeds_for(policy))


def shares_are_feasible(policy: Policy, situation: Situation) -> None:
    """No more GPUs than are usable, no job outside its range or on a type that it does not accept."""
    check_shares(situation.snapshot, asked(policy, situation))


def every_job_has_a_row_and_a_reason(policy: Policy, situation: Situation) -> None:
    """A job that is served runs; one that is not is told why, and what can never run is told *never*."""
    jobs, shares = situation.snapshot.jobs, asked(policy, situation)
    for column in (shares.gpus, shares.kind, shares.nodes, shares.why.code):
        assert len(column) == len(jobs)
    assert ((shares.gpus > 0) == (shares.why.code == Why.RUNS)).all()
    assert set(shares.why.code.tolist()) <= {int(code) for code in Why}
    assert all(shares.gpus[row] == 0 and text for row, text in shares.why.evidence.items())
    smallest = (
        jobs.gpus if policy.configurations(situation.snapshot.cluster).gpus.size == 0 else jobs.min_gpus
    )
    never = (smallest[:, None] > situation.snapshot.cluster.capacity) | ~jobs.allowed_kinds
    waits = never.all(axis=1) & (shares.gpus == 0)
    assert (shares.why.code[waits] < 0).all()


def the_same_snapshot_gives_the_same_shares(policy: Policy, situation: Situation) -> None:
    """A policy is a pure function."""
    assert digest(asked(policy, situation)) == digest(asked(policy, situation))


def the_order_in_which_jobs_are_handed_in_is_irrelevant(policy: Policy, situation: Situation) -> None:
    """Job ids break ties, not the order of collections."""
    one, other = asked(policy, situation), asked(policy, situation.in_another_order())
    assert digest((one.gpus, one.kind, one.nodes, one.why)) == digest(
        (other.gpus, other.kind, other.nodes, other.why)
    )


def undeclared_columns_are_not_read(policy: Policy, situation: Situation) -> None:
    """What a policy does not declare may be anything: the plan does not change."""
    scrambled = situation.with_others_scrambled(policy.views)
    unlimited = policy.allocate(scrambled.snapshot, scrambled.speeds_for(policy))
    assert digest(asked(policy, situation)) == digest(unlimited)


def its_memory_is_a_value_and_comes_back(policy: Policy, situation: Situation) -> None:
    """What it remembers can be stored, and a later decision with it is as good as the first."""
    memory = asked(policy, situation).memory
    digest(memory)
    later = situation.later(LATER_S, memory)
    shares_are_feasible(policy, later)
    the_same_snapshot_gives_the_same_shares(policy, later)


def the_memory_of_another_policy_does_no_harm(policy: Policy, situation: Situation) -> None:
    """Where a world changes its policy, the new one starts afresh."""
    foreign = situation.later(0.0, {"left by": "another policy"})
    assert digest(asked(policy, foreign).gpus) == digest(asked(policy, situation).gpus)


def non_preemptible_jobs_keep_what_they_hold(policy: Policy, situation: Situation) -> None:
    """A running job that may not be stopped keeps its count and type, whatever others would make of it."""
    jobs, shares = situation.snapshot.jobs, asked(policy, situation)
    fixed = np.flatnonzero((jobs.held_gpus > 0) & ~jobs.preemptible)
    assert (shares.gpus[fixed] == jobs.held_gpus[fixed]).all()
    assert ((shares.kind[fixed] == jobs.held_kind[fixed]) | (shares.kind[fixed] == -1)).all()
    for row in set(shares.pinned) & set(fixed.tolist()):
        assert shares.pinned[row].nodes == situation.snapshot.placement[JobId(jobs.ids[row])].nodes


def it_wakes_in_the_future(policy: Policy, situation: Situation) -> None:
    """A time to be asked again lies ahead, else the world would never move on."""
    wake_s = asked(policy, situation).wake_s
    assert wake_s is None or wake_s > situation.snapshot.now_s


def it_declares_a_period_where_it_wants_rounds(policy: Policy, situation: Situation) -> None:
    """Rounds have a period, and only rounds have."""
    triggers = policy.triggers
    assert (Trigger.ROUND in triggers.on) == (triggers.round_s is not None)
    assert triggers.round_s is None or triggers.round_s > 0


PROMISES: Mapping[str, Callable[[Policy, Situation], None]] = {
    promise.__name__: promise
    for promise in (
        shares_are_feasible,
        every_job_has_a_row_and_a_reason,
        the_same_snapshot_gives_the_same_shares,
        the_order_in_which_jobs_are_handed_in_is_irrelevant,
        undeclared_columns_are_not_read,
        its_memory_is_a_value_and_comes_back,
        the_memory_of_another_policy_does_no_harm,
        non_preemptible_jobs_keep_what_they_hold,
        it_wakes_in_the_future,
        it_declares_a_period_where_it_wants_rounds,
    )
}
