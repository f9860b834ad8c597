"""Nodes of lenders in the service: lent while that is settled, given back by Lyra's rule, waits measured."""

from collections.abc import Mapping
from math import isnan

import pytest
from tests.service.scene import Scene

from stretto.model import InputError, Trigger
from stretto.scheduler.round import decide
from stretto.service.lending.hand_over import HandOver, hand_overs, missed_guarantees
from stretto.service.scheduling.decision import decided, snapshot_for
from stretto.service.scheduling.scheduler import scheduler_of
from stretto.service.scheduling.snapshot_builder import SnapshotBuilder
from stretto.service.state import events as happened
from stretto.service.state.events import Configured
from stretto.service.state.status import Reason, why_not_yet

DUE = frozenset({Trigger.LENDERS, Trigger.ARRIVAL, Trigger.ROUND})
LEND = {"lend.rule": "lyra"}
ALL = {"lend.on_demand": "false"}
NONE: Mapping[str, str] = {}


class Lending:
    """A scene of which all nodes but the first are a lender's, and a policy that decides over it."""

    def __init__(self, nodes: int = 3, guarantee_s: float = 0.0, settings: Mapping[str, str] = NONE) -> None:
        self.scene = Scene(nodes=nodes)
        configured = Configured(
            "lyra", settings={**LEND, **settings}, priorities="preempt", speeds="measured"
        )
        self.scheduler = scheduler_of(configured)
        self.observer = SnapshotBuilder(self.scheduler.policy.views)
        lent = tuple(f"n{index}" for index in range(1, nodes))
        self.scene.tell(configured, happened.LenderSet("inference", lent, guarantee_s=guarantee_s))
        self.exchange()

    def need(self, nodes: float, at_s: float) -> None:
        self.scene.now_s = at_s
        self.scene.tell(happened.NeedReported("inference", nodes))

    def submit(self, name: str, least: int, most: int) -> None:
        self.scene.submit(name, gpus=least, elastic=(least, most), expected_time_s=3600.0)

    def decide(self) -> happened.Decided:
        scene = self.scene
        snapshot = snapshot_for(self.scheduler, self.observer, scene.state, scene.now_s, DUE, scene.memory)
        plan = decide(snapshot, self.scheduler)
        event = decided(snapshot, plan, scene.state.seq, 0.0)
        scene.tell(event)
        scene.memory = plan.memory
        return event

    def exchange(self) -> list[HandOver]:
        """Hand over what can be: a node with a process on it cannot."""
        occupied = {worker.node for worker in self.scene.running.values()}
        done = hand_overs(self.scene.state, occupied)
        for each in done:
            self.scene.tell(happened.NodesHandedOver(each.lender, each.nodes, each.to))
        return done

    def on_loan(self) -> list[str]:
        return [node.name for node in self.scene.state.nodes if node.on_loan]

    def at_home(self) -> list[str]:
        return [node.name for node in self.scene.state.nodes if node.in_hands_of == "inference"]


def test_nodes_of_a_lender_that_has_not_said_what_it_needs_are_out_of_reach() -> None:
    live = Lending()
    live.submit("1", least=1, most=12)
    event = live.decide()
    assert event.loans == {}
    assert (live.on_loan(), live.at_home()) == ([], ["n1", "n2"])
    assert live.scene.state.jobs["1"].accounting.held_gpus == 4


def test_without_a_setting_of_lend_nothing_is_lent_whatever_a_lender_needs() -> None:
    live = Lending(settings=ALL)
    live.need(0, at_s=10)
    live.submit("1", least=1, most=12)
    live.decide()
    live.exchange()
    assert live.on_loan() == ["n1", "n2"]
    live.scene.tell(Configured("lyra"))
    assert live.on_loan() == []
    assert why_not_yet(live.scene.state, live.scene.state.jobs["1"], 20.0) is Reason.NONE
    live.scheduler = scheduler_of(Configured("lyra"))
    live.submit("2", least=8, most=8)
    assert live.decide().loans == {}
    assert not live.scene.state.jobs["2"].accounting.held_gpus


def test_no_more_is_lent_than_jobs_can_fill_unless_all_is() -> None:
    for on_demand, lent in (("true", ["n1"]), ("false", ["n1", "n2", "n3"])):
        live = Lending(nodes=4, settings={"lend.on_demand": on_demand})
        live.need(0, at_s=10)
        live.scene.submit("1", gpus=4, expected_time_s=60.0)
        live.decide()
        assert live.on_loan() == lent


def test_headroom_is_never_lent_and_a_part_of_a_node_counts_whole() -> None:
    live = Lending(nodes=5, settings=ALL)
    live.scene.tell(happened.LenderSet("inference", ("n1", "n2", "n3", "n4"), headroom=0.25))
    live.need(0.5, at_s=10)
    live.decide()
    assert live.on_loan() == ["n1", "n2"]


def test_a_returned_node_goes_back_once_no_process_is_left_and_the_wait_is_measured() -> None:
    live = Lending(nodes=2, guarantee_s=20)
    live.need(0, at_s=10)
    live.scene.submit("1", gpus=4, expected_time_s=60.0)
    live.scene.submit("2", gpus=4, expected_time_s=60.0)
    live.decide()
    live.scene.reconcile()  # whatever runs on a node that has not changed hands would be a mistake
    assert live.exchange() == [HandOver("inference", ("n1",), "")]
    live.scene.reconcile()
    assert len(live.scene.running) == 8

    live.need(1, at_s=100)
    event = live.decide()
    job = next(iter(event.loans["preempted"]))
    assert event.loans["returned"] == ["n1"]
    live.scene.reconcile()
    assert live.exchange() == []  # its workers have been asked to leave, and are still there
    assert live.scene.asked_to_stop == set(live.scene.names(job))
    live.scene.now_s = 121
    late = missed_guarantees(live.scene.state, 121)
    assert late == [happened.GuaranteeMissed("inference", 100, 20, 1)]
    live.scene.tell(*late)
    assert missed_guarantees(live.scene.state, 122) == []  # it is said once

    live.scene.now_s = 130
    for name in live.scene.names(job):
        live.scene.end(name, 143)
    assert live.exchange() == [HandOver("inference", ("n1",), "inference")]
    lender = live.scene.state.lenders["inference"]
    assert (lender.waits, lender.waits_missed, lender.latest_wait_s) == (1, 1, 30)
    assert isnan(lender.asked_s)


def test_what_a_lender_needs_by_now_stays_with_it_although_it_was_lent_before_it_said_so() -> None:
    live = Lending(nodes=4, settings=ALL)
    live.need(0, at_s=10)
    live.decide()
    assert live.on_loan() == ["n1", "n2", "n3"]
    live.need(2, at_s=11)  # before any of them has changed hands
    assert live.exchange() == [HandOver("inference", ("n1",), "")]
    live.decide()
    assert len(live.on_loan()) == 1
    while live.exchange():  # a node may come back before another, which is still on loan, goes
        assert len(live.at_home()) >= 2
    assert live.at_home() == [name for name in ("n1", "n2", "n3") if name not in live.on_loan()]
    assert live.scene.state.lenders["inference"].waits == 0


def test_a_job_with_flexible_workers_there_goes_on_in_place_without_them() -> None:
    live = Lending(nodes=3, settings=ALL)
    live.need(0, at_s=10)
    live.submit("1", least=4, most=12)
    live.decide()
    live.exchange()
    live.scene.reconcile()
    live.scene.ready(*live.scene.names("1"))
    live.scene.reconcile()
    live.scene.join("1")
    before = live.scene.state.wanted("1")
    assert before is not None
    assert before.gpus > 4, "no flexible worker was placed"

    live.need(1, at_s=50)
    event = live.decide()
    assert (event.loans["scaled_in"], event.loans.get("preempted")) == (["1"], None)
    assert len(event.loans["returned"]) == 1
    live.scene.reconcile()
    live.scene.join("1")
    assert len(live.exchange()) == 1
    record = live.scene.state.jobs["1"]
    assert (record.attempt, record.accounting.starts) == (1, 1)  # no worker that stays was started anew
    assert live.scene.asked_to_stop == set()


def test_a_job_that_the_settlement_did_not_see_leaves_a_returned_node_too() -> None:
    live = Lending(nodes=2)
    live.need(0, at_s=10)
    live.scene.submit("1", gpus=4)
    live.scene.give(_1={"n0": 0b1111})
    live.scene.submit("2", gpus=4, expected_time_s=60.0)
    live.decide()
    assert live.scene.state.wanted("2") is not None
    seen = live.scene.state.seq
    live.scene.give(_2=None, _1={"n1": 0b1111})  # after the snapshot of the decision that follows
    live.scene.tell(happened.Decided(seen, 20.0, (), (), loans={"returned": ["n1"]}))
    assert live.scene.state.wanted("1") is None
    assert live.scene.state.jobs["1"].why == "node n1 went back to lender inference"


def test_a_node_on_which_jobs_run_is_on_loan_when_a_lender_is_set_and_ours_again_when_it_is_deleted() -> None:
    scene = Scene(nodes=2)
    scene.tell(Configured("lyra", settings=LEND))
    scene.submit("1", gpus=4)
    scene.give(_1={"n1": 0b1111})
    scene.tell(happened.LenderSet("inference", ("n0", "n1")))
    assert [node.on_loan for node in scene.state.nodes] == [False, True]
    scene.tell(happened.NodesHandedOver("inference", ("n0",), "inference"))
    scene.tell(happened.LenderDeleted("inference"))
    assert scene.state.usable().all()
    assert hand_overs(scene.state, set()) == [HandOver("inference", ("n0", "n1"), None)]


def test_where_no_loans_are_settled_a_lender_gets_its_nodes_from_the_jobs_on_them() -> None:
    scene = Scene(nodes=2)
    scene.submit("1", gpus=4)
    scene.give(_1={"n1": 0b1111})
    scene.tell(happened.LenderSet("inference", ("n0", "n1")))
    assert [node.on_loan for node in scene.state.nodes] == [False, False]
    assert scene.state.wanted("1") is None
    assert scene.state.jobs["1"].why == "node n1 went back to lender inference"


def test_an_idle_node_that_is_closed_goes_back_at_once_and_is_not_lent_anew() -> None:
    live = Lending(nodes=4, settings=ALL)
    live.need(0, at_s=10)
    live.decide()
    assert live.on_loan() == ["n1", "n2", "n3"]
    live.scene.tell(happened.NodeCordoned("n3", True))
    assert live.decide().loans == {"returned": ["n3"]}
    assert live.decide().loans == {}
    live.scene.tell(happened.NodeCordoned("n3", False))
    assert live.decide().loans == {"lent": ["n3"]}


def test_a_busy_node_that_is_closed_goes_back_once_the_others_are_not_enough() -> None:
    live = Lending(nodes=3, settings=ALL)
    live.need(0, at_s=10)
    live.decide()
    live.scene.submit("1", gpus=12, expected_time_s=600.0)
    live.decide()
    live.exchange()
    live.scene.reconcile()
    assert len(live.scene.running) == 12
    live.scene.tell(happened.NodeCordoned("n2", True))
    assert live.decide().loans == {}
    live.need(2, at_s=20)
    loans = live.decide().loans
    assert (loans["returned"], loans["preempted"]) == (["n1", "n2"], ["1"])
    assert live.on_loan() == []


def test_the_series_that_a_forecast_is_shown_has_one_entry_a_period_and_ends_now() -> None:
    live = Lending(nodes=5)
    for at_s, nodes in ((100, 4), (250, 2), (520, 1)):
        live.need(nodes, at_s=at_s)
    lender = live.scene.state.lenders["inference"]
    assert lender.demand(700, 200, 4).tolist() == [1.0, 0.5, 0.5, 0.25]
    assert lender.demand(700, 200, 2).tolist() == [1.0, 1.0, 1.0, 0.5]  # nodes that failed leave their part


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"lend.forecast": "oracle"}, "a service does not know"),
        ({"lend.demand": "synthetic"}, "says itself what it needs"),
        ({"lend.period_s": "0"}, "lend.period_s must be"),
    ],
)
def test_what_a_service_cannot_do_is_refused_in_one_line(setting: dict[str, str], words: str) -> None:
    with pytest.raises(InputError, match=words) as refused:
        scheduler_of(Configured("lyra", settings=setting))
    assert "\n" not in str(refused.value)
