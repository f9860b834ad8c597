"""Two users of equal shares, one of whom has far more jobs, simulated under every policy.

Waiting is measured as the time from submission to completion of the second user's last job. It may be twice
of what it is when that user is alone; one who comes later may also wait for what runs then, one job's length,
since nobody is stopped for fair share.
"""

from contextlib import suppress

import numpy as np
import pytest

from stretto.model import Adaptivity, FairShare, GpuType, Job, JobId, Plan, Snapshot, cluster_of
from stretto.policies.registry import describe, load_policy, policy_names
from stretto.scheduler.loop import run
from stretto.sim.run import Setup, scheduler_of, simulate, world_of
from stretto.sim.settings import SimSettings
from stretto.traces.workload import Truth, Workload

JOB_S, LATE_S = 600.0, 100.0
CLUSTER = cluster_of("four", (GpuType("gpu"), 1, 4))
LIMITS = FairShare(limits=True)


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


class BothAreDone(Exception):
    """The jobs that are looked at have ended."""


def bob_waits_s(name: str, many: int, late_s: float, shares: FairShare | None = LIMITS) -> float:
    """Seconds until the last job of bob has ended; what comes afterwards is not simulated."""
    setup = Setup(CLUSTER, load_policy(name), SimSettings(), shares=shares)
    world = world_of(workload(many, late_s), setup)

    def until_both_are_done(snapshot: Snapshot, _: Plan) -> None:
        if np.isfinite(world.accounting.completed_s[bob]).all():
            raise BothAreDone

    bob = [row for row, job in enumerate(world.requests.jobs) if job.user == "bob"]
    with suppress(BothAreDone):
        run(world, scheduler_of(setup), until_both_are_done)
    return float(world.accounting.completed_s[bob].max()) - late_s


@pytest.mark.slow
@pytest.mark.parametrize("name", policy_names())
def test_who_has_two_jobs_does_not_wait_for_a_hundred_of_another(name: str) -> None:
    alone_s = bob_waits_s(name, 0, 0.0)
    assert bob_waits_s(name, 100, 0.0) <= 2 * alone_s


@pytest.mark.heavy
@pytest.mark.parametrize("name", policy_names())
def test_nor_does_who_comes_later(name: str) -> None:
    alone_s = bob_waits_s(name, 0, LATE_S)
    assert bob_waits_s(name, 100, LATE_S) <= 2 * alone_s + JOB_S


def test_without_shares_the_second_waits_for_all_of_the_first() -> None:
    assert bob_waits_s("fifo", 100, 0.0, shares=None) > 20 * JOB_S


@pytest.mark.slow
@pytest.mark.parametrize("name", policy_names())
def test_one_user_alone_is_served_as_without_fair_share(name: str) -> None:
    made = [
        Job(JobId(f"{number:02}"), 50.0 * number, 1 + number % 3, max_gpus=4, user="ada")
        for number in range(6)
    ]
    one = Workload("one user", made, [Truth(JOB_S) for _ in made])
    plain, fair = (
        simulate(one, Setup(CLUSTER, load_policy(name), SimSettings(), shares=shares))
        for shares in (None, FairShare(user_shares={"ada": 7.0}, limits=True))
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
    assert "fair share" in said or "no order of jobs" in said
