import math
import tracemalloc
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drawn import scaled

from stretto.estimate import goodput as search
from stretto.estimate.efficiency import GradientNoise, efficiency
from stretto.estimate.goodput import BatchLimits, best_batch, best_batches, fixed_batches
from stretto.estimate.throughput import ThroughputModel, throughput
from stretto.model import BatchChoice
from stretto.model.arrays import FloatArray

NODES = np.array([1, 1, 1, 2, 4, 1, 1, 2, 3])
GPUS = np.array([1, 2, 4, 8, 16, 1, 8, 16, 24])
MODEL = ThroughputModel(0.05, 0.001, 0.08, 0.004, 0.02, 0.002, 2.0)
NOISE = GradientNoise(sqr=1.0, var=8.0)
LIMITS = BatchLimits(init_batch=128, max_batch=4096, min_local=32, max_local=1024)


class Jobs(NamedTuple):
    params: FloatArray  # (rows, cols, 7)
    noise: tuple[FloatArray, FloatArray]
    limits: BatchLimits


def some_jobs(rows: int, seed: int = 0) -> Jobs:
    """With and without overlap, more and less noisy, with little and much memory, some that cannot run."""
    chance = np.random.default_rng(seed)
    params = np.array(MODEL) * chance.uniform(0.2, 5.0, (rows, len(GPUS), 7))
    params[..., 6] = np.where(
        chance.random((rows, len(GPUS))) < 0.5, 1.0, chance.uniform(1, 10, params.shape[:2])
    )
    init = chance.integers(8, 300, (rows, 1))
    min_local = chance.integers(1, 40, (rows, 1))
    max_local = min_local * chance.integers(0, 20, (rows, len(GPUS)))
    limits = BatchLimits(init, init * chance.integers(1, 40, (rows, 1)), min_local, max_local)
    return Jobs(params, (chance.uniform(-0.1, 2, (rows, 1)), chance.uniform(0.1, 50, (rows, 1))), limits)


def by_hand(
    model: ThroughputModel, noise: GradientNoise, limits: tuple[int, ...], nodes: int, gpus: int,
    *, accumulates: bool = True,
) -> BatchChoice:  # fmt: skip
    """The search as one would write it with loops, in exact integer arithmetic where that matters."""
    init, most, min_local, max_local = limits
    best = BatchChoice(0.0, 0, 0, 0)
    least = max(init, min_local * gpus)
    if min_local > max_local or least > most:
        return best
    for total in np.geomspace(least, most, 50):
        share = total / gpus
        passes = max(1, math.ceil(share / max_local - 1e-8)) if accumulates else 1
        if gpus == 1 and share > init + 1e-8:
            passes, share = (max(passes, 2), share) if accumulates else (1, init)
        local = math.ceil(share / passes - 1e-8)
        run = gpus * local * passes
        if not min_local <= local <= max_local:
            continue
        speed = throughput(model, nodes, gpus, local, passes - 1) * efficiency(
            run, init, noise.var, noise.sqr
        )
        if speed > best.goodput * (1 + 1e-12):
            best = BatchChoice(float(speed), run, local, passes - 1)
    return best


@pytest.mark.slow
@pytest.mark.parametrize("accumulates", [True, False])
def test_searching_many_finds_what_searching_one_by_hand_finds(accumulates: bool) -> None:
    params, (sqr, var), limits = some_jobs(40)
    found = best_batches(params, (sqr, var), limits, NODES, GPUS, accumulates=accumulates)
    shapes = [np.broadcast_to(one, found.goodput.shape) for one in limits]
    for row, col in np.ndindex(found.goodput.shape):
        model, noise = (
            ThroughputModel(*params[row, col]),
            GradientNoise(float(sqr[row, 0]), float(var[row, 0])),
        )
        own = tuple(int(one[row, col]) for one in shapes)
        where = int(NODES[col]), int(GPUS[col])
        hand = by_hand(model, noise, own, *where, accumulates=accumulates)
        single = best_batch(model, noise, BatchLimits(*own), *where, accumulates=accumulates)
        many = BatchChoice(float(found.goodput[row, col]), *(int(one[row, col]) for one in found[1:]))
        assert many.goodput == pytest.approx(hand.goodput, rel=1e-9)
        assert many[1:] == hand[1:]
        assert single.goodput == pytest.approx(hand.goodput, rel=1e-9)
        assert single[1:] == hand[1:]


def test_the_result_does_not_depend_on_how_many_cells_are_searched_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jobs = some_jobs(30, seed=1)
    results = []
    for at_once in (1, 7, 128, 100_000):
        monkeypatch.setattr(search, "CELLS_AT_ONCE", at_once)
        results.append(best_batches(*jobs, NODES, GPUS))
    for other in results[1:]:
        for one, same in zip(results[0], other, strict=True):
            assert (one == same).all()


def test_one_model_per_job_serves_all_columns_of_a_gpu_type() -> None:
    jobs = some_jobs(10, seed=2)
    one_type = jobs.params[:, :1]
    short = best_batches(one_type, jobs.noise, jobs.limits, NODES, GPUS)
    long = best_batches(np.repeat(one_type, len(GPUS), axis=1), jobs.noise, jobs.limits, NODES, GPUS)
    assert (short.goodput == long.goodput).all()


def test_only_wanted_cells_are_searched() -> None:
    jobs = some_jobs(10, seed=3)
    wanted = np.random.default_rng(0).random((10, len(GPUS))) < 0.5
    some, every = best_batches(*jobs, NODES, GPUS, wanted=wanted), best_batches(*jobs, NODES, GPUS)
    assert (some.goodput == np.where(wanted, every.goodput, 0)).all()
    assert (some.local_batch == np.where(wanted, every.local_batch, 0)).all()


@pytest.mark.parametrize("gpus", [1, 2, 8])
def test_room_without_end_on_a_gpu_is_as_good_as_enough_of_it(gpus: int) -> None:
    enough, endless = (
        best_batch(MODEL, NOISE, BatchLimits(8, 4_096, 1, most), 1, gpus) for most in (4_096, 2**52)
    )
    assert endless == enough
    assert endless.goodput > 0


@settings(max_examples=scaled(60), deadline=None)
@given(
    init=st.integers(1, 500), times=st.integers(1, 64), min_local=st.integers(1, 50),
    room=st.integers(1, 40), gpus=st.sampled_from([1, 2, 4, 8, 16, 24, 64]), accumulates=st.booleans(),
)  # fmt: skip
def test_what_is_chosen_keeps_to_the_limits(
    init: int, times: int, min_local: int, room: int, gpus: int, accumulates: bool
) -> None:
    limits = BatchLimits(init, init * times, min_local, min_local * room)
    choice = best_batch(MODEL, NOISE, limits, 1 + gpus // 9, gpus, accumulates=accumulates)
    if choice.goodput == 0:
        assert choice == (0.0, 0, 0, 0)
        return
    passes = choice.accumulation + 1
    assert choice.total_batch == gpus * choice.local_batch * passes
    assert min_local <= choice.local_batch <= min_local * room
    assert max(init, min_local * gpus) <= choice.total_batch < init * times + gpus * passes
    assert accumulates or choice.accumulation == 0
    assert not accumulates or gpus > 1 or choice.total_batch <= init or choice.accumulation >= 1


def test_more_noise_makes_for_larger_batches() -> None:
    chosen = [
        best_batch(MODEL, GradientNoise(1.0, var), LIMITS, 1, 4).total_batch for var in (0.01, 1.0, 10.0, 1e3)
    ]
    assert chosen == sorted(chosen)
    assert chosen[0] == 128
    assert chosen[-1] > 4000


def test_unknown_noise_keeps_to_the_initial_batch() -> None:
    unknown = math.nan
    assert best_batch(MODEL, GradientNoise(unknown, unknown), LIMITS, 1, 2).total_batch == 128
    found = best_batches(np.array(MODEL), (unknown, unknown), LIMITS, NODES[:3], GPUS[:3])
    assert found.total_batch.tolist() == [128, 128, 128]


def test_a_type_without_room_for_the_model_has_no_batch() -> None:
    nowhere = LIMITS._replace(max_local=0)
    assert best_batch(MODEL, NOISE, nowhere, 1, 2) == (0.0, 0, 0, 0)
    assert not best_batches(np.array(MODEL), NOISE, nowhere, NODES, GPUS).goodput.any()


def test_too_many_gpus_for_the_largest_batch_have_no_batch() -> None:
    small = BatchLimits(init_batch=8, max_batch=64, min_local=4, max_local=16)
    assert best_batch(MODEL, NOISE, small, 3, 24).goodput == 0
    assert best_batch(MODEL, NOISE, small._replace(max_batch=96), 3, 24).total_batch == 96


@pytest.mark.parametrize(
    ("gpus", "local", "accumulation", "per_s"),
    [
        pytest.param(1, 125, 7, 1000 / (7 * 0.175 + 0.175), id="eight passes fit where one does not"),
        pytest.param(4, 125, 1, 1000 / (0.175 + math.hypot(0.175, 0.024)), id="split over GPUs, then passes"),
        pytest.param(
            3, 112, 2, 1000 / (2 * 0.162 + math.hypot(0.162, 0.022)), id="rounded up, not counted twice"
        ),
        pytest.param(64, 0, 0, 0.0, id="too little left for each"),
    ],
)
def test_a_fixed_batch_is_split_evenly(gpus: int, local: int, accumulation: int, per_s: float) -> None:
    limits = BatchLimits(init_batch=1000, max_batch=1000, min_local=32, max_local=128)
    found = fixed_batches(np.array([MODEL]), limits, np.array([1]), np.array([gpus]))
    assert found.goodput == pytest.approx(np.array([per_s]), rel=1e-6)
    assert (found.local_batch.item(), found.accumulation.item()) == (local, accumulation)
    assert found.total_batch.item() == (1000 if per_s else 0)


@pytest.mark.slow
def test_twenty_thousand_rows_take_little_memory() -> None:
    rows = 20_000
    params = np.broadcast_to(np.array(MODEL), (rows, 1, 7))
    tracemalloc.start()
    try:
        found = best_batches(params, NOISE, LIMITS, NODES, GPUS)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.goodput.shape == (rows, len(GPUS))
    assert peak_bytes < 100e6
