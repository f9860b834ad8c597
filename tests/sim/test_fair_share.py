"""Two users of equal shares, one of whom has far more jobs, simulated under every policy.

Waiting is measured as the time from submission to completion of the second user's last job. It may be twice
of what it is when that user is alone; one who comes later may also wait for what runs then, one job's length,
since nobody is stopped for fair share.
"""

import pytest

from stretto.model import Adaptivity, FairShare, GpuType, Job, JobId, cluster_of
from stretto.policies.registry import describe, load_policy, policy_names
from stretto.sim.result import Result
from stretto.sim.run import Setup, simulate
from stretto.sim.settings import SimSettings
from stretto.traces.workload import Truth, Workload

JOB_S, LATE_S = 600.0, 100.0
CLUSTER = cluster_of("four", (GpuType("gpu"), 1, 4))
WHOLE_ORDER = (  # who weigh all jobs against each other at once, by what each has had: see their `order`
    *("3sigma", "cornucopia", "drl", "gavel", "ones", "pollux", "shockwave", "sia", "themis", "unisched"),
)
FOLLOWING = [name for name in policy_names() if name not in WHOLE_ORDER]
TOGETHER = sorted([*FOLLOWING, "3sigma", "cornucopia", "drl", "ones", "shockwave"])  # where both come at once


def workload(many: int, late_s: float) -> Workload:
    """So many jobs of ada, and two of bob, of one GPU each."""
    asked = [("ada", number, 0.0) for number in range(many)] + [
        ("bob", number, late_s) for number in range(2)
    ]
    jobs = [
        Job(JobId(f"{user}{number:03}"), at_s, 1, user=user, adaptivity=Adaptivity.RIGID)
        for user, number, at_s in asked
    ]
    return Workload("two users", jobs, [Truth(JOB_S) for _ in jobs])


def ran(name: str, many: int, late_s: float, shares: FairShare | None) -> Result:
    return simulate(workload(many, late_s), Setup(CLUSTER, load_policy(name), SimSettings(), shares=shares))


def bob_waits_s(name: str, many: int, late_s: float, shares: FairShare | None = FairShare()) -> float:  # noqa: B008
    result = ran(name, many, late_s, shares)
    ends = dict(zip(result.requests.ids.tolist(), result.completed_s.tolist(), strict=True))
    return float(max(end for job, end in ends.items() if job.startswith("bob"))) - late_s


@pytest.mark.parametrize("name", TOGETHER)
def test_who_has_two_jobs_does_not_wait_for_a_hundred_of_another(name: str) -> None:
    alone_s = bob_waits_s(name, 0, 0.0)
    assert bob_waits_s(name, 100, 0.0) <= 2 * alone_s


@pytest.mark.parametrize("name", FOLLOWING)
def test_nor_does_who_comes_later(name: str) -> None:
    alone_s = bob_waits_s(name, 0, LATE_S)
    assert bob_waits_s(name, 100, LATE_S) <= 2 * alone_s + JOB_S


def test_without_shares_the_second_waits_for_all_of_the_first() -> None:
    assert bob_waits_s("fifo", 100, 0.0, shares=None) > 20 * JOB_S


@pytest.mark.parametrize("name", policy_names())
def test_one_user_alone_is_served_as_without_fair_share(name: str) -> None:
    made = [
        Job(JobId(f"{number:02}"), 50.0 * number, 1 + number % 3, max_gpus=4, user="ada")
        for number in range(6)
    ]
    one = Workload("one user", made, [Truth(JOB_S) for _ in made])
    plain, fair = (
        simulate(one, Setup(CLUSTER, load_policy(name), SimSettings(), shares=shares))
        for shares in (None, FairShare(user_shares={"ada": 7.0}))
    )
    assert plain.completed_s.tolist() == fair.completed_s.tolist()
    assert plain.history.held == fair.history.held


def test_shares_are_honoured_over_time() -> None:
    """Of 40 jobs each, twice the shares bring twice the GPU time, as long as both have jobs."""
    jobs = [
        Job(JobId(f"{user}{number:03}"), 0.0, 1, user=user, adaptivity=Adaptivity.RIGID)
        for user in ("ada", "bob")
        for number in range(40)
    ]
    both = Workload("two users", jobs, [Truth(JOB_S) for _ in jobs])
    setup = Setup(CLUSTER, load_policy("fifo"), SimSettings(), shares=FairShare(user_shares={"bob": 2.0}))
    result = simulate(both, setup)
    half = result.first_start_s <= 9 * JOB_S  # nobody has run out by then
    started = [
        str(job) for job, early in zip(result.requests.ids.tolist(), half.tolist(), strict=True) if early
    ]
    assert len([job for job in started if job.startswith("bob")]) == pytest.approx(
        2 * len(started) / 3, abs=1
    )


@pytest.mark.parametrize("name", policy_names())
def test_every_policy_says_who_comes_first(name: str) -> None:
    said = describe(name, load_policy(name)).order
    assert said
    assert "\n" not in said
    if name in FOLLOWING:
        assert "fair share" in said
