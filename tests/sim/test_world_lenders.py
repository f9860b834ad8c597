"""Nodes of others: usable while on loan, handed back when their owner needs them."""

from dataclasses import replace

import numpy as np
import pytest

from stretto.lend import CapacityLoaning
from stretto.model import ON_CHANGE, Adaptivity, Cluster, GpuType, Node, NodeId, Trigger, Triggers, View
from stretto.policies.fifo import FirstInFirstOut
from stretto.sim.lenders import SimulatedLender, shortfall_server_s
from stretto.sim.run import Setup, simulate
from stretto.sim.settings import SimSettings
from stretto.sim.world import CapacityEvent
from stretto.testing.builders import a_cluster, a_job

from .made_worlds import NO_RESTARTS, Seen, Told, a_truth, a_workload, on, seen, seen_training

OWN, LENT = GpuType("own"), GpuType("lent", speed=0.5)
CLUSTER = Cluster(
    "shared",
    (OWN, LENT),
    (
        Node(NodeId("own-0"), "own", 2),
        *(Node(NodeId(f"lent-{index}"), "lent", 2, lender="inference") for index in range(4)),
    ),
)


def lender(*demand: float, headroom: float = 0.0) -> SimulatedLender:
    return SimulatedLender("inference", np.arange(1, 5), headroom, 100.0, np.array(demand))


def lent(
    policy: Told, *demand: float, sim: SimSettings = NO_RESTARTS, period_s: float = 100.0, **jobs: float
) -> Seen:
    """Jobs of one GPU each, with durations on a GPU of speed 1."""
    timed = [(a_job(name, adaptivity=Adaptivity.RIGID), duration_s) for name, duration_s in jobs.items()]
    lending = CapacityLoaning(forecast="last", period_s=period_s)
    return seen(policy, a_workload(*timed), CLUSTER, sim, lending=lending, lenders=(lender(*demand),))


def test_without_a_rule_of_lending_lent_nodes_are_out_of_reach() -> None:
    run = seen(on(ON_CHANGE, at_0={"a": {0: 1}}), a_workload((a_job("a"), 10.0)), CLUSTER)
    assert run.at(0.0).usable.tolist() == [True, False, False, False, False]
    assert run.at(0.0).capacity.tolist() == [2, 0]


def test_what_a_lender_does_not_need_is_usable_from_its_first_period_on() -> None:
    run = lent(on(ON_CHANGE, at_0={"a": {1: 1}}), 0.5, a=50.0)
    assert run.plans[0].loans is not None
    assert run.plans[0].loans.usable.tolist() == [True, True, True, False, False]
    assert run.completed_s("a") == 100.0  # on a type of half the speed
    assert Trigger.LENDERS in run.snapshots[0].due


def test_a_lender_gets_its_nodes_back_and_whoever_ran_there_starts_again() -> None:
    policy = on(ON_CHANGE, at_0={"a": {1: 1}}, at_150={"a": {0: 1}})
    run = lent(policy, 0.0, 1.0, a=100.0)
    assert run.completed_s("a") == 150.0 + 50.0  # 50 of 100 were done by 100 s, at half the speed
    assert run.world.history.preemptions == 1
    (lending, taking_back) = run.world.history.settled
    assert (lending.on_loan, taking_back.on_loan, taking_back.preempted, taking_back.running) == (4, 0, 1, 1)
    assert taking_back.demanded_gpus == 8


def test_without_checkpoints_a_job_on_a_node_that_goes_back_starts_from_nothing() -> None:
    policy = on(ON_CHANGE, at_0={"a": {1: 1}}, at_150={"a": {0: 1}})
    run = lent(policy, 0.0, 1.0, sim=replace(NO_RESTARTS, checkpoints=False), a=100.0)
    assert run.completed_s("a") == 250.0


def test_loans_are_settled_as_often_as_the_rule_wants_and_no_more_once_demand_is_at_rest() -> None:
    policy = on(ON_CHANGE, at_0={"a": {1: 1}}, at_250={"a": {0: 1}})
    run = lent(policy, 0.0, 1.0, 1.0, period_s=150.0, a=200.0)
    asked_s = [one.now_s for one in run.snapshots if Trigger.LENDERS in one.due]
    assert asked_s == [0.0, 150.0, 300.0]
    assert [one.at_s for one in run.world.history.settled] == [0.0, 150.0]


def test_foresight_reaches_until_loans_are_settled_again() -> None:
    one = lender(0.25, 0.75, 0.5, 1.0)
    assert one.state(50.0, foresight=True, ahead_s=40.0).next_demand == 0.25
    assert one.state(50.0, foresight=True, ahead_s=250.0).next_demand == 1.0


def test_a_lent_node_that_fails_is_not_lent_until_it_is_back_and_the_others_serve_for_it() -> None:
    fails, returns = CapacityEvent(50.0, 1, usable=False), CapacityEvent(250.0, 1, usable=True)
    policy = on(ON_CHANGE, at_0={"a": {2: 1}}, at_60={"a": {2: 1}})
    lending = CapacityLoaning(forecast="last", period_s=100.0)
    jobs = a_workload((a_job("a", adaptivity=Adaptivity.RIGID), 150.0))
    steady = (lender(0.5, 0.5, 0.5, 0.5),)
    run = seen(policy, jobs, CLUSTER, capacity_events=[fails, returns], lending=lending, lenders=steady)
    usable = {
        plan_s: plan.loans.usable.tolist()
        for plan_s, plan in zip(run.decided_s, run.plans, strict=True)
        if plan.loans
    }
    assert usable[0.0] == [True, True, True, False, False]
    assert usable[50.0] == usable[100.0] == usable[200.0] == [True, False, True, False, False]
    assert usable[250.0] == [True, True, True, False, False]
    assert run.completed_s("a") == 300.0
    assert run.world.history.dropped == []


def test_a_lent_node_that_returns_stays_out_of_reach_where_nobody_lends() -> None:
    returns = CapacityEvent(5.0, 1, usable=True)
    run = seen(
        on(ON_CHANGE, at_0={"a": {0: 1}}), a_workload((a_job("a"), 10.0)), CLUSTER, capacity_events=[returns]
    )
    assert run.world.usable.tolist() == [True, False, False, False, False]


def test_decisions_see_the_demand_so_far_and_the_future_only_with_foresight() -> None:
    one = lender(0.25, 0.75, 0.5)
    past = one.state(150.0, foresight=False)
    assert (past.demand.tolist(), np.isnan(past.next_demand)) == ([0.25, 0.75], True)
    assert one.state(50.0, foresight=True).next_demand == 0.75
    assert one.state(999.0, foresight=True).next_demand == 0.5


def test_what_a_lender_lacked_is_counted() -> None:
    one = lender(0.5, 1.0, 0.5)
    assert shortfall_server_s(one, np.array([0.0]), np.array([2]), 300.0) == 2 * 100.0
    assert shortfall_server_s(one, np.array([0.0, 130.0]), np.array([2, 0]), 300.0) == 2 * 30.0
    assert shortfall_server_s(one, np.array([0.0, 130.0]), np.array([2, 0]), 300.0, from_s=120.0) == 2 * 10.0
    assert shortfall_server_s(one, np.zeros(0), np.zeros(0, dtype=np.int64), 300.0) == 0.0


def test_the_summary_tells_what_came_of_lending() -> None:
    first, second = a_job("a", gpus=2), a_job("b", gpus=1, at_s=200.0)
    policy = on(ON_CHANGE, at_0={"a": {1: 2}}, at_200={"b": {0: 1}})
    setup = Setup(
        CLUSTER, policy, NO_RESTARTS, lending=CapacityLoaning(forecast="last"), lenders=(lender(0.5),)
    )
    told = simulate(a_workload((first, 50.0), (second, 10.0)), setup).summary()
    # Until 200 s: a holds 2 GPUs for 100 s, of 4 that are on loan and 10 in all, 4 of which serve.
    assert told["usage_on_loan"] == pytest.approx(2 * 100 / (4 * 200))
    assert told["usage_overall"] == pytest.approx((2 * 100 + 4 * 200) / (10 * 200))
    assert (told["lender_shortfall_server_s"], told["loan_preemption_ratio"]) == (0.0, 0.0)


def test_use_on_loan_is_unknown_where_a_type_is_lent_and_owned() -> None:
    both = (*CLUSTER.nodes, Node(NodeId("own-1"), "lent", 2))
    first, second = a_job("a", gpus=2), a_job("b", at_s=200.0)
    setup = Setup(
        replace(CLUSTER, nodes=both),
        on(ON_CHANGE, at_0={"a": {5: 2}}, at_200={"b": {0: 1}}),
        NO_RESTARTS,
        lending=CapacityLoaning(forecast="last"),
        lenders=(lender(0.5),),
    )
    told = simulate(a_workload((first, 50.0), (second, 10.0)), setup).summary()
    assert told["usage_on_loan"] is None
    assert told["usage_overall"] is not None


def test_rounds_before_which_nothing_changed_can_be_left_out() -> None:
    lazy = Triggers(frozenset({Trigger.ROUND}), 10.0, when_changed=True)
    policy = Told({0.0: {"a": {0: 1}, "b": {0: 1}}}, lazy)
    jobs = a_workload((a_job("a"), 95.0), (a_job("b", at_s=42.0), 3.0))
    run = seen(policy, jobs, CLUSTER)
    assert run.decided_s == [0.0, 50.0, 60.0]  # b came before 50 and went before 60


def test_a_training_that_ends_is_a_change_after_which_a_round_follows() -> None:
    class Lazy(FirstInFirstOut):
        triggers = Triggers(frozenset({Trigger.ROUND}), 10.0, when_changed=True)

    truth = a_truth(epoch_s=100.0, epochs=1, restart_s=0.0)
    run = seen_training(Lazy(), [a_job("a"), a_job("b")], a_cluster(1), truth)
    assert run.decided_s == [0.0, 110.0]
    assert run.completed_s("b") == pytest.approx(210.0)


def test_the_world_shows_learning_only_to_those_who_declare_it() -> None:
    policy = Told({0.0: {"a": {0: 1}}}, views=frozenset({View.LEARNING}))
    run = seen(policy, a_workload((a_job("a"), 10.0)), CLUSTER)
    assert np.isnan(run.at(0.0).jobs.learning.metric).all()
