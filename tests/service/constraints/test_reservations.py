"""What is reserved is there for its user when the time comes, and for nobody else, under every policy."""

import pytest
from tests.service.play import Deciding

from stretto.model import InputError, Reservation, Why, check_reservation
from stretto.policies.registry import policy_names
from stretto.service.state import events as happened
from stretto.service.state.events import QueueSet

POLICIES = policy_names()


def reserve(
    live: Deciding, from_s: float, until_s: float, gpus: int = 0, nodes: tuple[str, ...] = ()
) -> None:
    kind = "a100" if gpus else ""
    live.scene.tell(happened.Reserved("r", from_s, until_s, kind, gpus, nodes, "bob"))


@pytest.mark.parametrize("policy", POLICIES)
def test_gpus_are_free_for_their_user_when_the_time_comes_and_for_all_after_it(policy: str) -> None:
    live = Deciding(policy)
    for number in range(8):
        live.submit(f"{number + 1}", "", 1)
    live.decide()
    live.decide()
    assert live.held("") == 8
    reserve(live, 300.0, 2000.0, gpus=3)
    while live.scene.now_s < 200.0:
        live.decide()
    assert live.held("") == 8, "nobody leaves long before"
    while live.scene.now_s < 300.0:
        live.decide()
    assert live.held("") <= 5
    live.submit("9", "", 3, user="bob")
    for _ in range(20):  # one policy profiles it first, on fewer: its workers must have begun
        live.decide()
        if live.gpus("9") == 3:
            break
        live.scene.reconcile()
    assert live.gpus("9") == 3
    assert live.held("") <= 8
    live.end("9")
    live.decide()
    assert live.held("") <= 5, "still reserved"
    live.scene.now_s = 2000.0
    for _ in range(6):
        live.decide()
    assert live.held("") == 8


@pytest.mark.parametrize("policy", POLICIES)
def test_named_nodes_are_left_before_and_used_by_their_user_only(policy: str) -> None:
    live = Deciding(policy, nodes=3, gpus=2)
    for number in range(6):
        live.submit(f"{number + 1}", "", 1)
    for _ in range(3):
        live.decide()
    reserve(live, 300.0, 900.0, nodes=("n1",))
    live.scene.now_s = 240.0
    for _ in range(3):
        live.decide()
    placement = live.scene.state.placement
    assert placement is not None
    assert not placement.busy[1]
    assert live.held("") == 4
    live.submit("7", "", 2, user="bob")
    for _ in range(4):
        live.decide()
    held = live.scene.state.wanted("7")
    assert held is not None
    assert held.nodes == (1,)
    assert live.held("") == 6


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("is_full", [False, True], ids=["with room elsewhere", "without room elsewhere"])
def test_who_cannot_be_moved_stays_on_a_node_when_its_reservation_begins(policy: str, is_full: bool) -> None:
    live = Deciding(policy, nodes=2, gpus=2)
    live.scene.submit("1", gpus=2, preemptible=False)
    live.scene.give(_1={"n0": 0b11})
    if is_full:
        live.scene.submit("2", gpus=2, preemptible=False)
        live.scene.give(_2={"n1": 0b11})
    live.scene.reconcile()
    before = {name: live.scene.state.wanted(name) for name in ("1", "2") if name in live.scene.state.jobs}
    reserve(live, 60.0, 9_000.0, nodes=("n0",))
    live.submit("3", "", 1, user="bob")
    for _ in range(5):
        live.decide()
        live.scene.reconcile()
    assert {name: live.scene.state.wanted(name) for name in before} == before
    assert {name.split(".")[0] for name in live.scene.asked_to_stop}.isdisjoint(before)


def test_who_cannot_be_moved_is_moved_off_a_reserved_node_that_is_gone() -> None:
    live = Deciding("stretto", nodes=2, gpus=2)
    live.scene.submit("1", gpus=2, preemptible=False)
    live.scene.give(_1={"n0": 0b11})
    live.scene.reconcile()
    reserve(live, 60.0, 9_000.0, nodes=("n0",))
    live.decide()
    live.scene.now_s = 90.0
    live.scene.silence(0)
    live.scene.bury(0)
    for _ in range(3):
        live.decide()
        live.scene.reconcile()
    held = live.scene.state.wanted("1")
    assert held is not None
    assert held.nodes == (1,)


def test_who_cannot_be_moved_does_not_start_where_it_would_still_run() -> None:
    live = Deciding("fifo", nodes=1)
    reserve(live, 1000.0, 2000.0, gpus=2)
    live.submit("1", "", 3, preemptible=False, expected_time_s=5000.0)
    plan = live.decide()
    assert live.gpus("1") == 0
    assert plan.why.of(0) is Why.RESERVED
    assert "2 x a100 are reserved for user bob" in plan.why.evidence[0]
    assert plan.wake_s == pytest.approx(1000.0 - 30.0)
    live.submit("2", "", 3, preemptible=False, expected_time_s=500.0)
    live.decide()
    assert live.gpus("2") == 3, "it ends before"


def test_a_reservation_that_cannot_be_kept_is_refused() -> None:
    cluster = Deciding("fifo").scene.state.cluster
    assert cluster is not None
    good = Reservation("r", 0.0, 10.0, "a100", 6, user="bob")
    check_reservation(good, cluster, {})
    for bad, why in (
        (Reservation("r", 0.0, 10.0, "a100", 6), "for a user or a queue"),
        (Reservation("r", 10.0, 10.0, "a100", 6, user="b"), "must end after"),
        (Reservation("r", 0.0, 10.0, user="b"), "one of the two"),
        (Reservation("r", 0.0, 10.0, "h100", 1, user="b"), "expected one of a100"),
        (Reservation("r", 0.0, 10.0, nodes=("n9",), user="b"), "no node 'n9'"),
        (Reservation("s", 5.0, 10.0, "a100", 3, user="b"), "of which 6 are reserved"),
    ):
        with pytest.raises(InputError, match=why):
            check_reservation(bad, cluster, {"r": good})


@pytest.mark.parametrize("nodes", [(), ("n0", "n1")], ids=["of a type", "of nodes"])
def test_what_is_reserved_for_a_queue_is_for_the_queues_in_it(nodes: tuple[str, ...]) -> None:
    live = Deciding("fifo")
    tree = (QueueSet("lab"), QueueSet("vision", parent="lab"), QueueSet("faces", parent="vision"))
    live.scene.tell(*tree, QueueSet("other"))
    kind, gpus = ("", 0) if nodes else ("a100", 8)
    live.scene.tell(happened.Reserved("r", 0.0, 9_000.0, kind, gpus, nodes, queue="lab"))
    for name, queue in (("1", "lab"), ("2", "vision"), ("3", "faces"), ("4", "other")):
        live.submit(name, queue, 1)
    live.decide()
    assert [live.gpus(name) for name in "1234"] == [1, 1, 1, 0]


def test_what_is_reserved_for_a_queue_is_not_for_the_one_that_it_is_in() -> None:
    live = Deciding("fifo")
    live.scene.tell(QueueSet("lab"), QueueSet("vision", parent="lab"))
    live.scene.tell(happened.Reserved("r", 0.0, 9_000.0, "a100", 8, queue="vision"))
    live.submit("1", "lab", 1)
    live.submit("2", "vision", 1)
    live.decide()
    assert [live.gpus(name) for name in "12"] == [0, 1]


@pytest.mark.parametrize(("queue", "starts"), [("vision", True), ("other", False)])
def test_a_job_that_cannot_be_moved_starts_on_what_is_to_be_reserved_for_the_queue_around_its_own(
    queue: str, starts: bool
) -> None:
    live = Deciding("fifo")
    live.scene.tell(QueueSet("lab"), QueueSet("vision", parent="lab"), QueueSet("other"))
    live.scene.tell(happened.Reserved("r", 1_000.0, 9_000.0, "", 0, ("n0", "n1"), queue="lab"))
    live.submit("1", queue, 1, preemptible=False)
    live.decide()
    assert bool(live.gpus("1")) is starts


def test_in_an_older_log_who_cannot_be_moved_leaves_a_node_when_its_reservation_begins() -> None:
    live = Deciding("stretto", nodes=2, gpus=2)
    live.scene.tell(happened.Configured("stretto", priorities="preempt", quotas="kept"))
    live.scene.submit("1", gpus=2, preemptible=False)
    live.scene.give(_1={"n0": 0b11})
    live.scene.reconcile()
    reserve(live, 10.0, 9_000.0, nodes=("n0",))
    live.decide()
    held = live.scene.state.wanted("1")
    assert held is not None
    assert held.nodes == (1,)


def test_a_reservation_in_an_older_log_serves_jobs_that_name_its_queue_only() -> None:
    live = Deciding("fifo")
    live.scene.tell(happened.Configured("fifo", priorities="preempt"))
    live.scene.tell(QueueSet("lab"), QueueSet("vision", parent="lab"))
    live.scene.tell(happened.Reserved("r", 0.0, 9_000.0, "a100", 8, queue="lab"))
    live.submit("1", "vision", 1)
    live.decide()
    assert live.gpus("1") == 0
