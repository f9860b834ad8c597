"""Jobs that state a range of GPUs, where UniSched may choose."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.policies.unisched.test_policy import HOUR_S, LEASE_S, LINEAR, TICK_S, nothing_learned

from stretto.model import Durations, Job, JobId, MeasuredSpeeds, Reward, Shares, Snapshot, no_speeds
from stretto.policies.unisched.policy import Profiling, UniSched
from stretto.scheduler.check import check_shares
from stretto.testing.builders import a_cluster, a_job, a_snapshot, grant, some_progress

SCALES = UniSched(profiling=Profiling.OFF, auto_scaling=True)
CLUSTER = a_cluster(4)
FLAT = MeasuredSpeeds(*np.array([[[0.0, 1.0, 0.7, 0.6, 0.5]]] * 2))


def ranged(name: str, gpus: int = 2, most: int = 4, by_s: float = 0.0) -> Job:
    rewards = (Reward(by_s, 100.0),) if by_s else ()
    return a_job(name, gpus, 0.0, min_gpus=1, max_gpus=most, rewards=rewards)


def seen(*rows: tuple[Job, MeasuredSpeeds], left_s: float = HOUR_S, **rest: Any) -> Snapshot:
    jobs = [job for job, _ in rows]
    return a_snapshot(
        *jobs,
        cluster=CLUSTER,
        known_progress=some_progress(len(jobs), profiled_s=np.full(len(jobs), 0.0)),
        known_estimates=Durations(np.full(len(jobs), 2 * HOUR_S), np.full(len(jobs), left_s)),
        known_tables=[table for _, table in rows],
        known_learning=nothing_learned(len(jobs)),
        **rest,
    )


def given(policy: UniSched, snapshot: Snapshot) -> tuple[list[int], Shares]:
    shares = policy.allocate(snapshot, no_speeds(len(snapshot.jobs), 1, policy.configurations(CLUSTER)))
    check_shares(snapshot, shares)
    return shares.gpus.tolist(), shares


def test_a_job_that_does_not_scale_keeps_one_gpu_and_the_other_has_the_rest() -> None:
    gpus, _ = given(SCALES, seen((ranged("flat"), FLAT), (ranged("linear"), LINEAR)))
    assert gpus == [1, 3]


def test_without_the_setting_jobs_run_on_what_they_ask_for() -> None:
    rigid = replace(SCALES, auto_scaling=False)
    assert given(rigid, seen((ranged("flat"), FLAT), (ranged("linear"), LINEAR)))[0] == [2, 2]


def test_of_equals_each_gets_its_part_of_what_is_idle() -> None:
    assert given(SCALES, seen((ranged("a"), LINEAR), (ranged("b"), LINEAR)))[0] == [2, 2]


@pytest.mark.parametrize(
    ("leases", "speeds", "gpus"),
    [
        (6, FLAT, 1),  # one GPU is enough, and no count does it with fewer GPU-leases
        (2, LINEAR, 3),  # an hour on two GPUs: two leases need six times one GPU
    ],
)
def test_a_deadline_is_planned_on_the_count_of_fewest_gpu_leases_that_meets_it(
    leases: int, speeds: MeasuredSpeeds, gpus: int
) -> None:
    urgent = ranged("urgent", most=3, by_s=leases * LEASE_S + 1)
    left_s = HOUR_S if speeds is FLAT else 2 * LEASE_S * 3 / 2
    counts, shares = given(SCALES, seen((ranged("other", 1, 1), LINEAR), (urgent, speeds), left_s=left_s))
    assert counts == [1, gpus]
    assert shares.memory.accepted.tolist() == [False, True]


def test_within_a_cycle_a_lease_keeps_its_count() -> None:
    urgent = ranged("urgent", most=3, by_s=2 * LEASE_S + 1)
    before = seen((urgent, LINEAR), left_s=3 * LEASE_S)
    counts, shares = given(SCALES, before)
    assert counts == [3]
    held = {JobId("urgent"): grant(0, n0=3)}
    later = {"allocations": held, "memory": shares.memory, "now_s": TICK_S}
    # Nearly done, two GPUs would be enough by now; and another that gains more asks for all that is idle.
    others = ((urgent, LINEAR), (ranged("new"), LINEAR))
    assert given(SCALES, seen(*others, left_s=LEASE_S / 2, **later))[0] == [1, 3]
