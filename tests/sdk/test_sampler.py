"""Each sample of an epoch once, whoever trains."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stretto.sdk.sampler import MicroBatchSampler, order_of, step_at, steps_from

pytestmark = pytest.mark.torch

SIZES = st.tuples(st.integers(1, 7), st.integers(1, 40), st.integers(1, 4))  # world, total, accumulation


@given(
    samples=st.integers(1, 200),
    epoch=st.integers(0, 3),
    phases=st.lists(st.tuples(SIZES, st.integers(1, 5)), min_size=1, max_size=8),
)
def test_any_sequence_of_resizes_sees_each_sample_once(
    samples: int, epoch: int, phases: list[tuple[tuple[int, int, int], int]]
) -> None:
    order = order_of(epoch, samples, seed=3)
    seen: list[int] = []
    taken, phase = 0, 0
    while taken < samples:
        (world, total, accumulation), steps = phases[phase % len(phases)]
        phase += 1
        for _ in range(steps):
            if taken == samples:
                break
            of_ranks = [step_at(taken, order, total, accumulation, rank, world) for rank in range(world)]
            assert len({(step.samples, len(step.micro_batches)) for step in of_ranks}) == 1
            local = math.ceil(total / world / accumulation)
            for step in of_ranks:
                assert 1 <= len(step.micro_batches) <= accumulation
                for each in step.micro_batches:
                    assert 0 < len(each.indices) <= local
                    assert each.is_padding == (each.weight == 0.0)
                    seen += [] if each.is_padding else each.indices.tolist()
            taken += of_ranks[0].samples
    assert sorted(seen) == list(range(samples))


@given(
    by_worker=st.lists(st.integers(1, 30), min_size=1, max_size=7),
    accumulation=st.integers(1, 4),
    samples=st.integers(1, 200),
)
def test_unequal_parts_of_a_step_take_each_sample_once_and_no_rank_more_than_its_part(
    by_worker: list[int], accumulation: int, samples: int
) -> None:
    world, total, order = len(by_worker), sum(by_worker), order_of(0, samples, 0)
    local = math.ceil(max(by_worker) / accumulation)
    value = torch.arange(samples, dtype=torch.float64) ** 2
    taken, seen = 0, list[int]()
    while taken < samples:
        of_ranks = [
            step_at(taken, order, total, accumulation, rank, world, tuple(by_worker)) for rank in range(world)
        ]
        assert len({(step.samples, len(step.micro_batches), step.by_rank) for step in of_ranks}) == 1
        for rank, step in enumerate(of_ranks):
            own = [each for each in step.micro_batches if not each.is_padding]
            assert sum(len(each.indices) for each in own) == step.by_rank[rank] <= by_worker[rank]
            assert all(0 < len(each.indices) <= max(local, 2) for each in step.micro_batches)
            seen += [index for each in own for index in each.indices.tolist()]
        size = of_ranks[0].samples
        if size == total:
            assert of_ranks[0].by_rank == tuple(by_worker)
        means = [
            sum(float(value[each.indices].mean()) * each.weight for each in step.micro_batches)
            for step in of_ranks
        ]
        assert np.isclose(np.mean(means), float(value[order[taken : taken + size]].mean()))
        taken += size
    assert sorted(seen) == list(range(samples))


@given(by_worker=st.lists(st.integers(3, 20), min_size=1, max_size=7), samples=st.integers(2, 200))
def test_what_is_left_of_an_epoch_leaves_no_rank_of_an_unequal_step_with_a_single_sample(
    by_worker: list[int], samples: int
) -> None:
    order, world = order_of(0, samples, 0), len(by_worker)
    for rank in range(world):
        for step in steps_from(0, order, sum(by_worker), 1, rank, world, tuple(by_worker)):
            assert step.samples == 1 or all(len(each.indices) > 1 for each in step.micro_batches)


@given(sizes=SIZES, samples=st.integers(1, 60), rank=st.integers(0, 6))
def test_what_the_loader_is_asked_for_is_what_the_steps_say(
    sizes: tuple[int, int, int], samples: int, rank: int
) -> None:
    world, total, accumulation = sizes
    plan = (order_of(0, samples, 0), total, accumulation, rank % world, world)
    passes = [each.indices.tolist() for step in steps_from(0, *plan) for each in step.micro_batches]
    assert list(MicroBatchSampler(steps_from(0, *plan))) == passes


@given(sizes=SIZES, samples=st.integers(1, 60))
def test_weighted_passes_averaged_over_ranks_are_the_mean_over_the_samples(
    sizes: tuple[int, int, int], samples: int
) -> None:
    world, total, accumulation = sizes
    value = torch.arange(samples, dtype=torch.float64) ** 2
    order = order_of(0, samples, 0)
    of_ranks = [
        sum(float(value[each.indices].mean()) * each.weight for each in step.micro_batches)
        for step in (step_at(0, order, total, accumulation, rank, world) for rank in range(world))
    ]
    assert np.isclose(np.mean(of_ranks), float(value[order[:total]].mean()))


@given(world=st.integers(1, 9), local=st.integers(3, 20), samples=st.integers(2, 400))
def test_what_is_left_of_an_epoch_leaves_nobody_with_a_single_sample(
    world: int, local: int, samples: int
) -> None:
    order, total = order_of(0, samples, 0), world * local
    for rank in range(world):
        for step in steps_from(0, order, total, 1, rank, world):
            assert step.samples == 1 or all(len(each.indices) > 1 for each in step.micro_batches)


def test_rank_0_whose_running_averages_count_gets_samples_of_every_step() -> None:
    for samples in range(1, 33):
        step = step_at(0, order_of(0, samples, 0), 32, 1, rank=0, world=8)
        assert not step.micro_batches[0].is_padding


def test_epochs_have_different_orders_and_seeds_too() -> None:
    orders = {tuple(order_of(epoch, 50, seed)) for epoch in range(3) for seed in range(3)}
    assert len(orders) == 9
    assert list(order_of(0, 5, 0, shuffle=False)) == [0, 1, 2, 3, 4]
