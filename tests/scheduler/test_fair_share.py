"""Who comes first by what everybody has had, on trees that can be worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.model import Account, FairShare
from stretto.scheduler.fair_share import AHEAD_S, Accounts, in_fair_order, tree_of
from stretto.testing.builders import a_cluster, a_job, a_snapshot, grant

HOUR = 3_600.0


def order(fair: FairShare, *jobs: tuple[str, str], holding: str = "") -> list[str]:
    """Names of jobs `QUEUE/USER` in fair order: the account and how many of it came before."""
    counted: dict[Account, int] = {}
    named = []
    for account in jobs:
        counted[account] = counted.get(account, 0) + 1
        named.append(f"{account[1]}{counted[account]}")
    made = [a_job(name, gpus=1, at_s=float(at)) for at, name in enumerate(named)]
    held = {holding: grant(0, n0=1)} if holding else {}
    snapshot = a_snapshot(*made, cluster=a_cluster(4), allocations=held)
    rows = in_fair_order(snapshot.jobs, Accounts.of(jobs), fair)
    return [str(snapshot.jobs.ids[row]) for row in rows.tolist()]


A, B, C = ("q", "a"), ("q", "b"), ("q", "c")


@pytest.mark.parametrize(
    ("fair", "jobs", "expected"),
    [
        pytest.param(FairShare(), [A, A, B, B], "a1 b1 a2 b2", id="equals take turns"),
        pytest.param(FairShare({A: 1.0}), [A, A, B, B], "b1 a1 b2 a2", id="who has had a second less begins"),
        pytest.param(FairShare({A: 2 * HOUR}), [A, A, B, B, B], "b1 b2 a1 b3 a2", id="until they are level"),
        pytest.param(FairShare({A: 99 * HOUR}), [A, A, B, B], "b1 b2 a1 a2", id="all, of who is far behind"),
        pytest.param(
            FairShare({}, {A: 1}), [A, A, B, B], "b1 a1 b2 a2", id="what is held counts for an hour"
        ),
        pytest.param(
            FairShare(user_shares={"a": 2}), [A, A, A, A, B, B], "a1 b1 a2 a3 b2 a4", id="twice the shares"
        ),
        pytest.param(
            FairShare({("x", "a"): 9 * HOUR}, queue_shares={"x": 1}),
            [("x", "a"), ("x", "b"), ("y", "c"), ("y", "c")],
            "c1 c2 b1 a1",
            id="queues are compared before the users in them",
        ),
        pytest.param(
            FairShare({("x1", "a"): 9 * HOUR}, parents={"x1": "x", "x2": "x"}),
            [("x1", "b"), ("x2", "a"), ("y", "c"), ("y", "c")],
            "c1 c2 a1 b1",
            id="and queues before the queues in them",
        ),
    ],
)
def test_it_orders(fair: FairShare, jobs: list[Account], expected: str) -> None:
    assert order(fair, *jobs) == expected.split()


def test_whoever_holds_gpus_stays_in_front() -> None:
    fair = FairShare({A: 9 * HOUR})
    assert order(fair, A, A, B, holding="a2") == ["a2", "b1", "a1"]


def test_the_factor_is_a_half_for_who_has_had_its_share() -> None:
    fair = FairShare({A: 100.0, B: 300.0, ("r", "c"): 400.0}, user_shares={"b": 3.0}, queue_shares={"r": 3.0})
    root = tree_of(fair, [A, B, ("r", "c")], queues=["idle"])
    q, r, idle = (root.children[False, name] for name in ("q", "r", "idle"))
    assert [(one.entitled, one.usage_gpu_s) for one in (q, r, idle)] == [(0.2, 400), (0.6, 400), (0.2, 0)]
    assert [one.factor for one in (q, r, idle)] == pytest.approx([2**-2.5, 2 ** (-0.5 / 0.6), 1.0])
    a, b = q.children[True, "a"], q.children[True, "b"]
    assert [(one.entitled, one.factor) for one in (a, b)] == [(0.05, 0.5), (pytest.approx(0.15), 0.5)]


ACCOUNTS = st.tuples(st.sampled_from(["", "x", "y", "z"]), st.sampled_from(["a", "b", "c"]))


@given(
    jobs=st.lists(ACCOUNTS, min_size=1, max_size=30),
    usage=st.dictionaries(ACCOUNTS, st.floats(0, 1e9)),
    shares=st.dictionaries(st.sampled_from(["x", "y", "z"]), st.floats(0.01, 100)),
    parents=st.sampled_from([{}, {"y": "x"}, {"y": "x", "z": "y"}]),
)
def test_every_job_comes_once_and_jobs_of_one_account_by_submission(
    jobs: list[Account], usage: dict[Account, float], shares: dict[str, float], parents: dict[str, str]
) -> None:
    fair = FairShare(usage, queue_shares=shares, parents=parents)
    made = [a_job(str(number), gpus=1, at_s=float(number)) for number in range(len(jobs))]
    rows = in_fair_order(a_snapshot(*made, cluster=a_cluster(4)).jobs, Accounts.of(jobs), fair).tolist()
    assert sorted(rows) == list(range(len(jobs)))
    for account in set(jobs):
        mine = [row for row in rows if jobs[row] == account]
        assert mine == sorted(mine)


@given(usage=st.lists(st.floats(0, 1e7), min_size=2, max_size=2))
def test_the_next_job_is_of_who_would_have_had_least_for_its_shares(usage: list[float]) -> None:
    accounts = [A, B] * 20
    fair = FairShare(dict(zip([A, B], usage, strict=True)), user_shares={"b": 3.0})
    made = [a_job(f"{number:02}", gpus=1, at_s=float(number)) for number in range(len(accounts))]
    rows = in_fair_order(a_snapshot(*made, cluster=a_cluster(4)).jobs, Accounts.of(accounts), fair).tolist()
    had, left = {A: usage[0], B: usage[1]}, {A: 20, B: 20}
    for row in rows:
        level = {A: had[A], B: had[B] / 3.0}
        able = [account for account in (A, B) if left[account]]
        assert level[accounts[row]] <= min(level[account] for account in able) + 1e-6
        had[accounts[row]] += AHEAD_S
        left[accounts[row]] -= 1
