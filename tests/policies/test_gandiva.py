import numpy as np
import pytest

from stretto.model import Allocation, JobId, Snapshot, no_speeds
from stretto.policies.gandiva import Gandiva, Grown
from stretto.testing.builders import a_cluster, a_job, a_snapshot, grant
from stretto.testing.play import play


def decided(snapshot: Snapshot, policy: Gandiva | None = None) -> tuple[dict[str, int], Grown]:
    policy = policy or Gandiva()
    nothing = no_speeds(len(snapshot.jobs), 1, policy.configurations(snapshot.cluster))
    shares = policy.allocate(snapshot, nothing)
    gpus = zip(snapshot.jobs.ids, shares.gpus.tolist(), strict=True)
    return {str(job): count for job, count in gpus if count}, shares.memory


def test_idle_gpus_go_in_turn_to_whoever_has_fewest_beyond_its_base() -> None:
    jobs = [a_job(name, 2, at_s=at, min_gpus=2, max_gpus=6) for at, name in enumerate("abc")]
    gpus, memory = decided(a_snapshot(*jobs, cluster=a_cluster(8, 4)))
    assert gpus == {"a": 4, "b": 4, "c": 4}
    assert memory.jobs == ("a", "b", "c")


def test_a_worker_of_two_gpus_grows_by_two() -> None:
    jobs = [a_job("wide", 2, min_gpus=2, max_gpus=8, gpus_per_worker=2), a_job("rigid", 1, max_gpus=1)]
    assert decided(a_snapshot(*jobs, cluster=a_cluster(8)))[0] == {"wide": 6, "rigid": 1}


def test_nobody_grows_while_a_job_waits_that_does_not_fit() -> None:
    jobs = [a_job("runs", 2, min_gpus=2, max_gpus=8), a_job("waits", 8, at_s=1, min_gpus=8, max_gpus=8)]
    gpus, _ = decided(a_snapshot(*jobs, cluster=a_cluster(8), allocations={"runs": grant(0, n0=2)}))
    assert gpus == {"runs": 2}


def test_a_job_that_could_never_run_keeps_nobody_from_growing() -> None:
    jobs = [a_job("runs", 2, min_gpus=2, max_gpus=8), a_job("never", 9, at_s=1, min_gpus=9, max_gpus=9)]
    assert decided(a_snapshot(*jobs, cluster=a_cluster(8)))[0] == {"runs": 8}


def grown_two(asked: int, memory: Grown | None) -> Snapshot:
    """Two jobs with 3 GPUs beyond their base of one, and one that waits."""
    elastic = [a_job(name, 1, min_gpus=1, max_gpus=4) for name in "ab"]
    held = {"a": grant(0, n0=4), "b": Allocation(0, (0,), (0b11110000,))}
    waits = a_job("waits", asked, at_s=1, min_gpus=asked, max_gpus=asked)
    return a_snapshot(*elastic, waits, cluster=a_cluster(8), allocations=held, memory=memory)


@pytest.mark.parametrize(
    ("asked", "grown", "gpus"),
    [
        pytest.param(3, ("b", "a"), {"a": 1, "b": 4, "waits": 3}, id="who grew last goes back first"),
        pytest.param(3, ("a", "b"), {"a": 4, "b": 1, "waits": 3}, id="whoever that was"),
        pytest.param(6, ("a", "b"), {"a": 1, "b": 1, "waits": 6}, id="and more where that is not enough"),
    ],
)
def test_jobs_go_back_to_their_bases_for_one_that_waits(
    asked: int, grown: tuple[str, ...], gpus: dict[str, int]
) -> None:
    served, memory = decided(grown_two(asked, Grown(tuple(JobId(job) for job in grown))))
    assert served == gpus
    assert memory.jobs == tuple(job for job in grown if gpus[job] > 1)


def test_for_a_job_that_would_not_fit_even_then_nobody_shrinks() -> None:
    jobs = [
        a_job("fixed", 4, max_gpus=4, min_gpus=4),
        a_job("grown", 1, min_gpus=1, max_gpus=4),
        a_job("waits", 6, at_s=1, min_gpus=6, max_gpus=6),
    ]
    held = {"fixed": grant(0, n0=4), "grown": Allocation(0, (0,), (0b11110000,))}
    assert decided(a_snapshot(*jobs, cluster=a_cluster(8), allocations=held))[0] == {"fixed": 4, "grown": 4}


@pytest.mark.parametrize(("skip", "served"), [(False, {"runs": 4}), (True, {"runs": 4, "small": 2})])
def test_only_with_skip_may_a_job_pass_another(skip: bool, served: dict[str, int]) -> None:
    jobs = [
        a_job(name, gpus, at_s=at, min_gpus=gpus, max_gpus=gpus)
        for at, (name, gpus) in enumerate({"runs": 4, "large": 8, "small": 2}.items())
    ]
    snapshot = a_snapshot(*jobs, cluster=a_cluster(8), allocations={"runs": grant(0, n0=4)})
    assert decided(snapshot, Gandiva(skip=skip))[0] == served


def test_jobs_are_played_to_their_ends() -> None:
    jobs = [a_job("a", 2, min_gpus=2, max_gpus=8), a_job("b", 4, at_s=5, min_gpus=4, max_gpus=4)]
    played = play(Gandiva(), {"a": 10.0, "b": 10.0}, jobs, a_cluster(8))
    assert played.decisions[:2] == ((0.0, {"a": 8}), (5.0, {"a": 4, "b": 4}))
    assert np.isclose(played.ended_s["b"], 15.0)
