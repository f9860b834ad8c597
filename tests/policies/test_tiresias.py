from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stretto.model import InputError, Shares, Snapshot, Trigger, digest, no_speeds
from stretto.policies.common.admission import NO_CONFIGURATIONS
from stretto.policies.tiresias import Tiresias, TiresiasGittins, gittins_index, gittins_index_within
from stretto.testing.builders import a_cluster, a_job, a_snapshot, grant, some_progress
from stretto.testing.play import play

SAMPLES = np.array([2.0, 4.0, 4.0, 10.0])


def a_contest(
    held: dict[str, int] | None = None, now_s: float = 100.0, gpus: int = 4, **columns: Any
) -> Snapshot:
    """Jobs a and b ask for all 4 GPUs; b came later. Columns of progress are for a and b."""
    grants = {name: grant(0, n0=count) for name, count in (held or {}).items()}
    jobs = [a_job("a", gpus), a_job("b", gpus, at_s=1.0)]
    progress = some_progress(2, **columns)
    return a_snapshot(*jobs, cluster=a_cluster(4), allocations=grants, now_s=now_s, known_progress=progress)


def asked(policy: Tiresias, snapshot: Snapshot) -> Shares:
    return policy.allocate(snapshot, no_speeds(len(snapshot.jobs), 1, NO_CONFIGURATIONS))


def winner(policy: Tiresias, snapshot: Snapshot) -> str:
    return " ".join(np.array(snapshot.jobs.ids)[asked(policy, snapshot).gpus > 0])


def test_a_job_is_demoted_when_its_service_reaches_the_bound() -> None:
    jobs = [a_job("a", 4), a_job("b", 4, at_s=20.0)]
    policy = Tiresias(queue_bounds_gpu_s=(100.0,))
    played = play(policy, {"a": 40.0, "b": 10.0}, jobs, a_cluster(4))
    assert played.decisions[:4] == ((0.0, {"a": 4}), (20.0, {"a": 4}), (25.0, {"b": 4}), (35.0, {"a": 4}))
    assert played.ended_s == {"b": 35.0, "a": 50.0}


@pytest.mark.parametrize(
    ("attained_gpu_s", "first_start_s", "served"),
    [
        pytest.param((50.0, 0.0), (0.0, np.nan), "a", id="in one queue those that ran come first"),
        pytest.param(
            (50.0, 40.0), (9.0, 5.0), "b", id="in one queue the first start decides, not the service"
        ),
        pytest.param((0.0, 0.0), (np.nan, np.nan), "a", id="those that never ran go by submission"),
        pytest.param((100.0, 99.0), (0.0, 50.0), "b", id="at the bound a job is in the next queue"),
        pytest.param((900.0, 100.0), (0.0, 50.0), "a", id="the last queue has no end"),
    ],
)
def test_las_gives_the_gpus_to(
    attained_gpu_s: tuple[float, float], first_start_s: tuple[float, float], served: str
) -> None:
    snapshot = a_contest(attained_gpu_s=attained_gpu_s, first_start_s=first_start_s)
    assert winner(Tiresias(queue_bounds_gpu_s=(100.0,)), snapshot) == served


@pytest.mark.parametrize(
    ("attained_gpu_s", "wake_s"),
    [
        pytest.param((60.0, 0.0), 110.0, id="at (bound - attained) / GPUs from now"),
        pytest.param(
            (99.9999999, 0.0), 125.0, id="a bound as good as reached is reached: b runs, up to its own"
        ),
        pytest.param((250.0, 200.0), None, id="never from the last queue"),
    ],
)
def test_it_wakes_when_a_served_job_crosses_a_bound(
    attained_gpu_s: tuple[float, float], wake_s: float | None
) -> None:
    snapshot = a_contest({"a": 4}, attained_gpu_s=attained_gpu_s, first_start_s=(0.0, np.nan))
    assert asked(Tiresias(queue_bounds_gpu_s=(100.0,)), snapshot).wake_s == pytest.approx(wake_s)


def test_nobody_wakes_it_where_nobody_waits() -> None:
    snapshot = a_contest({"a": 2}, gpus=2, attained_gpu_s=(60.0, 0.0))
    assert asked(Tiresias(queue_bounds_gpu_s=(100.0,)), snapshot).wake_s is None


def test_a_starving_job_starts_afresh() -> None:
    policy = Tiresias(queue_bounds_gpu_s=(100.0,), starvation_factor=2.0)
    progress: dict[str, Any] = {
        "attained_gpu_s": (120.0, 10.0),
        "executed_s": (30.0, 5.0),
        "first_start_s": (0.0, 40.0),
        "last_stop_s": (40.0, np.nan),
    }
    waits = a_contest({"b": 4}, now_s=80.0, **progress)
    shares = asked(policy, waits)
    assert shares.gpus.tolist() == [0, 4]
    assert shares.wake_s == pytest.approx(100.0)  # 40 s + 2 x 30 s, before b's bound at 102.5 s

    starved = replace(a_contest({"b": 4}, now_s=100.0, **progress), memory=shares.memory)
    shares = asked(policy, starved)
    assert shares.gpus.tolist() == [4, 0]  # both in the first queue, a first started
    later = a_contest({"a": 4}, now_s=110.0, **(progress | {"attained_gpu_s": (160.0, 10.0)}))
    assert asked(policy, replace(later, memory=shares.memory)).gpus.tolist() == [4, 0]
    assert asked(policy, later).gpus.tolist() == [0, 4]  # without the memory it is back in the last queue


def test_memory_is_kept_only_where_a_setting_needs_it() -> None:
    snapshot = a_contest(attained_gpu_s=(60.0, 0.0))
    assert asked(Tiresias(), snapshot).memory is None
    for policy in (Tiresias(starvation_factor=1.0), TiresiasGittins()):
        first, again = (asked(policy, snapshot).memory for _ in range(2))
        assert digest(first) == digest(again)


@pytest.mark.parametrize(
    ("attained", "horizon", "index"),
    [(0.0, 2.0, 0.1250), (0.0, 4.0, 0.2143), (0.0, 10.0, 0.2000), (2.0, 2.0, 0.3333), (4.0, 6.0, 0.1667)],
)
def test_the_gittins_index_within_a_horizon(attained: float, horizon: float, index: float) -> None:
    found = gittins_index_within(SAMPLES, np.array([attained]), np.array([horizon]))
    assert found == pytest.approx([index], abs=5e-5)


def test_the_gittins_index_is_the_best_over_all_horizons() -> None:
    assert gittins_index(SAMPLES, np.array([0.0, 2.0, 4.0])) == pytest.approx(
        [0.2143, 0.3333, 0.1667], abs=5e-5
    )
    assert gittins_index(SAMPLES, np.array([10.0, 11.0])).tolist() == [0.0, 0.0]
    assert gittins_index(np.zeros(0), np.array([1.0])).tolist() == [0.0]


@given(
    samples=st.lists(st.integers(1, 40), min_size=1, max_size=12),
    attained=st.integers(0, 40),
    horizon=st.one_of(st.integers(1, 50), st.just(np.inf)),
)
def test_the_index_is_its_definition(samples: list[int], attained: int, horizon: float) -> None:
    longer = [service for service in samples if service > attained]
    finish = sum(service - attained <= horizon for service in longer)
    spent = sum(min(service - attained, horizon) for service in longer)
    found = gittins_index_within(np.array(samples, float), np.array([float(attained)]), np.array([horizon]))
    assert found == pytest.approx([finish / spent if longer else 0.0])


# The distance to a sample and back again may end a rounding error before it.
@given(
    samples=st.lists(st.integers(1, 1_000_000), min_size=1, max_size=6), attained=st.integers(0, 1_000_000)
)
@example(samples=[365_110], attained=105_495)
def test_the_best_horizon_is_where_a_sample_ends(samples: list[int], attained: int) -> None:
    services, had = np.array(samples) / 100, attained / 100
    left = services[services > had] - had
    best = max(((left <= end).sum() / np.minimum(left, end).sum() for end in left), default=0.0)
    assert gittins_index(services, np.array([had])) == pytest.approx([best], rel=1e-6)


def test_gittins_prefers_the_likelier_to_finish_within_the_queue() -> None:
    # Services are 2 or 10 000: a job that has had 3 will take long, a new one is likely to be short.
    samples = (2.0, 2.0, 2.0, 10_000.0)
    snapshot = a_contest(attained_gpu_s=(3.0, 0.0), first_start_s=(0.0, np.nan))
    assert winner(Tiresias(), snapshot) == "a"
    assert winner(TiresiasGittins(service_samples_gpu_s=samples), snapshot) == "b"
    assert winner(TiresiasGittins(service_samples_gpu_s=samples, gittins_supremum=True), snapshot) == "b"


def test_services_are_learned_from_jobs_that_have_gone() -> None:
    policy = TiresiasGittins(most_samples=2)
    memory = None
    for at_s, name in ((0.0, "a"), (10.0, "b"), (30.0, "c"), (60.0, "d")):
        snapshot = a_snapshot(
            a_job(name, 2), cluster=a_cluster(4), now_s=at_s, memory=memory, known_progress=some_progress(1)
        )
        memory = asked(policy, snapshot).memory
    assert memory is not None
    assert memory.services_gpu_s.tolist() == [2 * 20.0, 2 * 30.0]  # of b and c; a's was dropped


def test_triggers_are_changes_and_rounds_if_wanted() -> None:
    assert Tiresias().triggers.round_s is None
    ticking = Tiresias(round_s=60.0).triggers
    assert (Trigger.ROUND in ticking.on, ticking.round_s) == (True, 60.0)


@pytest.mark.parametrize("bounds", [(100.0, 50.0), (0.0,), (5.0, 5.0)])
def test_bounds_must_increase(bounds: tuple[float, ...]) -> None:
    with pytest.raises(InputError, match="queue_bounds_gpu_s must be increasing"):
        Tiresias(queue_bounds_gpu_s=bounds)
