"""Queues within queues: guarantees hold at each level, and what is borrowed comes from siblings first."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drawn import scaled
from tests.service.play import Deciding

from stretto.model import InputError, Queue, Why
from stretto.model.queue import check_queue_tree, line_of, may_use, parents_of, with_quotas
from stretto.service.state import events as happened
from stretto.service.state.events import QueueSet

#         lab: 6                other: 2
#     vision: 4   speech: 2
TREE = (
    QueueSet("lab", 6, 2),
    QueueSet("vision", 4, 4, parent="lab"),
    QueueSet("speech", 2, 6, parent="lab"),
    QueueSet("other", 2, 6),
)


def a_lab(policy: str = "fifo", tree: Sequence[QueueSet] = TREE) -> Deciding:
    """Eight GPUs."""
    live = Deciding(policy)
    live.scene.tell(*tree)
    return live


def submit(live: Deciding, first: int, count: int, queue: str, gpus: int = 1) -> list[str]:
    names = [str(number) for number in range(first, first + count)]
    for name in names:
        live.submit(name, queue, gpus)
    return names


def held(live: Deciding) -> dict[str, int]:
    """GPUs of each queue, with all that is in it."""
    parents = parents_of(live.scene.state.queues)
    found = dict.fromkeys(live.scene.state.queues, 0)
    for record in live.scene.state.open_jobs():
        for queue in line_of(record.queue, parents):
            found[queue] += record.accounting.held_gpus
    return found


def test_a_parent_bounds_all_that_is_in_it() -> None:
    live = a_lab(tree=(QueueSet("lab", 5), QueueSet("vision", 3, 4, parent="lab"), TREE[2]))
    submit(live, 1, 8, "vision")
    submit(live, 11, 8, "speech")
    for _ in range(4):
        live.decide()
    assert held(live)["lab"] == 5


def test_a_queue_borrows_from_its_siblings_first_and_gives_back_to_them_alone() -> None:
    live = a_lab()
    submit(live, 1, 8, "speech")
    submit(live, 11, 2, "other")
    live.decide()
    assert held(live) == {"lab": 6, "vision": 0, "speech": 6, "other": 2}, (
        "all of the lab's, none of the other's"
    )
    submit(live, 21, 4, "vision")
    for _ in range(4):
        live.decide()
    assert held(live) == {"lab": 6, "vision": 4, "speech": 2, "other": 2}, "speech gave back, nobody else"


def test_who_is_within_what_its_parent_is_guaranteed_gets_it_back_from_others() -> None:
    live = a_lab()
    submit(live, 1, 8, "other")
    live.decide()
    assert held(live)["other"] == 8, "nobody else waits"
    submit(live, 11, 5, "speech")  # beyond its own two, within the lab's six
    for _ in range(4):
        live.decide()
    assert held(live) == {"lab": 5, "vision": 0, "speech": 5, "other": 3}


def test_what_is_given_back_comes_from_the_nearest_who_borrowed() -> None:
    live = a_lab(tree=(*TREE[:3], QueueSet("other", 1, 6)))
    submit(live, 1, 2, "other")
    submit(live, 11, 8, "speech")
    for _ in range(3):
        live.decide()
    assert held(live) == {"lab": 6, "vision": 0, "speech": 6, "other": 2}, "both borrow"
    submit(live, 21, 1, "vision")
    for _ in range(3):
        live.decide()
    assert held(live) == {"lab": 6, "vision": 1, "speech": 5, "other": 2}


def test_a_parent_at_its_limit_gives_no_job_of_a_part_what_a_sibling_is_guaranteed() -> None:
    live = a_lab(
        tree=(
            QueueSet("lab", 4, 4),
            QueueSet("vision", 2, 6, parent="lab"),
            QueueSet("speech", 2, 6, parent="lab"),
            QueueSet("other", 4),
        )
    )
    live.scene.tell(happened.Configured("fifo", priorities="preempt", quotas="kept"))
    submit(live, 1, 2, "vision")
    submit(live, 11, 2, "speech")
    live.decide()
    live.decide()
    live.submit("21", "vision", 1, priority=9)
    submit(live, 31, 1, "other", gpus=2)  # so the lab borrows nothing
    live.decide()
    assert held(live) == {"lab": 4, "vision": 2, "speech": 2, "other": 2}
    assert live.gpus("21") == 1, "its own part makes room for it"


IN_PART = (QueueSet("lab", 6), QueueSet("vision", 3, 3, parent="lab"), QueueSet("other", 2))


@pytest.mark.parametrize(("borrower", "lender"), [("lab", "vision"), ("vision", "lab")])
def test_jobs_directly_in_a_parent_lend_and_borrow_as_a_part_with_what_the_others_leave(
    borrower: str, lender: str
) -> None:
    live = a_lab(tree=IN_PART)
    live.scene.tell(happened.Configured("fifo", priorities="preempt", quotas="kept"))
    submit(live, 1, 6, borrower)
    live.decide()
    live.decide()
    assert held(live)["lab"] == 6
    names = submit(live, 11, 4, lender)
    for _ in range(4):
        live.decide()
    assert [live.gpus(name) for name in names] == [1, 1, 1, 0], "its three, and no more"
    assert held(live)["lab"] == 6


def test_those_that_cannot_be_preempted_have_no_more_than_parts_leave_them() -> None:
    live = a_lab(tree=IN_PART)
    live.scene.tell(happened.Configured("fifo", priorities="preempt", quotas="kept"))
    for number in range(4):
        live.submit(f"{number + 1}", "lab", 1, preemptible=False)
    plan = live.decide()
    assert held(live)["lab"] == 3
    assert plan.why.of(3) is Why.MAY_NOT_BORROW
    assert plan.why.evidence[3].startswith("queue lab outside of its parts is guaranteed 3 GPUs")


def test_in_decisions_of_an_older_log_they_are_in_no_part() -> None:
    live = a_lab(tree=IN_PART)
    live.scene.tell(happened.Configured("fifo", priorities="preempt"))  # says nothing of quotas
    submit(live, 1, 6, "vision")
    live.decide()
    submit(live, 11, 3, "lab")
    for _ in range(4):
        live.decide()
    assert held(live) == {"lab": 6, "vision": 6, "other": 0}


def test_a_lowered_quota_of_a_parent_takes_from_those_in_it_who_borrow() -> None:
    live = a_lab(
        tree=(QueueSet("lab", 8), QueueSet("vision", 2, 8, parent="lab"), QueueSet("speech", 2, parent="lab"))
    )
    submit(live, 1, 6, "vision")
    submit(live, 11, 2, "speech")
    live.decide()
    live.decide()
    assert held(live) == {"lab": 8, "vision": 6, "speech": 2}
    live.scene.tell(QueueSet("lab", 4))
    for _ in range(3):
        live.decide()
    assert held(live) == {"lab": 4, "vision": 2, "speech": 2}


def test_jobs_without_a_queue_have_what_no_queue_is_guaranteed_and_give_back_the_rest() -> None:
    live = a_lab(tree=(QueueSet("team", 5, 3), QueueSet("default", is_default=True)))
    submit(live, 1, 8, "")
    live.decide()
    assert held(live) == {"team": 0, "default": 8}
    submit(live, 11, 8, "team")
    for _ in range(4):
        live.decide()
    assert held(live) == {"team": 5, "default": 3}


def test_a_default_queue_of_an_old_log_is_one_like_others() -> None:
    old = {"team": Queue("team", 5), "default": Queue("default")}
    assert set(with_quotas(old, 8)) == {"team"}
    new = {**old, "default": Queue("default", is_default=True)}
    assert (with_quotas(new, 8)["default"].quota_gpus, with_quotas(new, 8)["default"].borrow_gpus) == (3, 8)
    assert with_quotas({"default": new["default"]}, 8) == {}


def test_quotas_in_a_queue_that_has_none_are_not_left_over() -> None:
    queues = {
        one.name: one
        for one in (
            Queue("lab"),
            Queue("vision", 3, parent="lab"),
            Queue("speech", parent="lab"),
            Queue("calls", 2, parent="speech"),
            Queue("team", 4),
            Queue("half", 1, parent="team"),
            Queue("default", is_default=True),
        )
    }
    assert with_quotas(queues, 10)["default"].quota_gpus == 10 - 3 - 2 - 4
    assert with_quotas(queues, 10, counts_parts=False)["default"].quota_gpus == 6, "as in old logs"


NAMES = ("lab", "vision", "speech", "other")
Step = tuple[str, str, int, int]


@settings(max_examples=scaled(60), deadline=None)
@given(
    policy=st.sampled_from(["fifo", "srtf", "tiresias", "afs", "sia", "gavel"]),
    quotas=st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 2), st.integers(0, 4)),
    borrows=st.tuples(*[st.integers(0, 8)] * 4),
    steps=st.lists(
        st.tuples(
            st.sampled_from(["submit", "submit", "submit", "end"]),
            st.sampled_from(["vision", "speech", "other"]),
            st.integers(1, 4),
            st.integers(0, 20),
        ),
        min_size=3,
        max_size=12,
    ),
)
def test_no_guarantee_is_broken_on_any_level(
    policy: str, quotas: tuple[int, int, int, int], borrows: tuple[int, int, int, int], steps: Sequence[Step]
) -> None:
    """Nobody is pushed below its quota by others, and who waits within it starts, level by level."""
    vision, speech, own, other = quotas
    sizes = {"vision": vision, "speech": speech, "lab": vision + speech + own, "other": other}
    borrow = dict(zip(NAMES, borrows, strict=True))
    # Together no more than there is: a guarantee of GPUs that do not exist is none.
    sizes["other"] = min(other, 8 - min(sizes["lab"], 8))
    sizes["lab"] = max(min(sizes["lab"], 8), vision + speech)
    inside = {"vision": "lab", "speech": "lab"}
    live = a_lab(
        policy,
        [QueueSet(name, sizes[name], borrow[name], parent=inside.get(name, "")) for name in NAMES],
    )
    count = 0
    for verb, queue, gpus, which in steps:
        if verb == "submit":
            for _ in range(gpus):
                live.submit(f"{count}", queue, 1)
                count += 1
        elif live.scene.state.open:
            live.end(live.scene.state.open_jobs()[which % len(live.scene.state.open)].id)
        before = held(live)
        live.decide()
        after = held(live)
        for name in NAMES:
            assert after[name] <= sizes[name] + borrow[name], (name, "beyond its limit")
            assert after[name] >= min(before[name], sizes[name]), (name, "pushed below its quota")
        for _ in range(3):
            live.decide()
        settled = held(live)
        waiting = [one for one in live.scene.state.open_jobs() if not one.accounting.held_gpus]
        for record in waiting:
            line = line_of(record.queue, inside)
            assert any(settled[name] >= sizes[name] for name in line), (record.queue, settled, sizes)


@pytest.mark.parametrize(
    ("queues", "said"),
    [
        pytest.param([Queue("a", parent="x")], "there is no queue that it can be in", id="no such parent"),
        pytest.param(
            [Queue("a", parent="x"), Queue("b")], "expected one of b, got 'x'", id="another is there"
        ),
        pytest.param([Queue("a", parent="a")], "a in a", id="itself"),
        pytest.param([Queue("a", parent="b"), Queue("b", parent="a")], "a in b in a", id="a circle"),
        pytest.param(
            [Queue("a", 3), Queue("b", 4, parent="a")],
            r"quota of queue a: expected at least 4 GPUs, .* \(b\), got 3",
            id="quotas",
        ),
        pytest.param(
            [Queue("a", 3), Queue("b", parent="a"), Queue("c", 4, parent="b")],
            r"quota of queue a: expected at least 4 GPUs, .* \(c\), got 3",
            id="quotas in a part without one",
        ),
        pytest.param(
            [Queue("default", parent="a"), Queue("a")], "no queue that it can be in", id="the default"
        ),
    ],
)
def test_a_tree_that_cannot_be_is_refused_with_a_line(queues: Sequence[Queue], said: str) -> None:
    with pytest.raises(InputError, match=said) as wrong:
        check_queue_tree({queue.name: queue for queue in queues})
    assert "\n" not in str(wrong.value)


def test_the_nearest_list_of_users_around_a_queue_counts() -> None:
    queues = {
        one.name: one
        for one in (
            Queue("lab", users=("ada", "bob")),
            Queue("vision", parent="lab"),
            Queue("secret", users=("bob",), parent="vision"),
            Queue("open"),
        )
    }
    may = {
        (queue, user) for queue in queues for user in ("ada", "bob", "eve") if may_use(queues, queue, user)
    }
    assert {queue for queue, user in may if user == "ada"} == {"lab", "vision", "open"}
    assert {queue for queue, user in may if user == "bob"} == {"lab", "vision", "secret", "open"}
    assert {queue for queue, user in may if user == "eve"} == {"open"}


def test_priorities_take_nothing_that_a_queue_around_is_guaranteed() -> None:
    live = a_lab()
    live.scene.tell(happened.Configured("fifo", priorities="preempt"))
    submit(live, 1, 4, "vision")
    submit(live, 11, 4, "speech")  # two of them beyond its quota
    live.decide()
    live.decide()
    assert held(live)["lab"] == 8
    for number in range(21, 25):
        live.submit(str(number), "other", 1, priority=9)
    for _ in range(3):
        live.decide()
    assert held(live) == {"lab": 6, "vision": 4, "speech": 2, "other": 2}
