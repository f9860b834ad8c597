import numpy as np
import pytest

from stretto.estimate.throughput import (
    ThroughputModel,
    bubble_fraction,
    grad_s,
    hybrid_iteration_s,
    hybrid_throughput,
    iteration_s,
    pipeline_s,
    replicas_of,
    step_s,
    sync_s,
    throughput,
)

MODEL = ThroughputModel(
    alpha_c=0.05, beta_c=0.001, alpha_n=0.08, beta_n=0.004, alpha_l=0.02, beta_l=0.002, gamma=2.0
)


@pytest.mark.parametrize(
    ("local_batch", "gpus", "nodes", "accumulation", "expected_s", "expected_per_s"),
    [
        pytest.param(128, 1, 1, 0, 0.1780, 719.10, id="one GPU does not synchronise"),
        pytest.param(128, 2, 1, 0, 0.17912, 1429.21, id="two GPUs of a node"),
        pytest.param(128, 4, 1, 0, 0.17961, 2850.61, id="four GPUs of a node"),
        pytest.param(128, 8, 2, 0, 0.20616, 4967.13, id="two nodes"),
        pytest.param(128, 4, 1, 1, 0.35761, 2863.45, id="one pass more before synchronising"),
    ],
)
def test_iteration_times_and_throughput_follow_the_model(
    local_batch: int, gpus: int, nodes: int, accumulation: int, expected_s: float, expected_per_s: float
) -> None:
    assert iteration_s(MODEL, nodes, gpus, local_batch, accumulation) == pytest.approx(expected_s, abs=6e-6)
    assert throughput(MODEL, nodes, gpus, local_batch, accumulation) == pytest.approx(
        expected_per_s, abs=6e-3
    )


def test_arguments_broadcast_over_models_and_placements() -> None:
    models = np.array([MODEL, MODEL._replace(gamma=1.0), MODEL._replace(alpha_c=0.2)])
    nodes, gpus = np.array([1, 1, 2, 4]), np.array([1, 4, 8, 16])
    table = iteration_s(models[:, None, :], nodes, gpus, 64, 1)
    assert table.shape == (3, 4)
    for row, model in enumerate(models):
        for col in range(4):
            alone = iteration_s(ThroughputModel(*model), int(nodes[col]), int(gpus[col]), 64, 1)
            assert table[row, col] == pytest.approx(alone, rel=1e-12)


def test_without_overlap_computing_and_synchronising_add_up() -> None:
    alone = MODEL._replace(gamma=1.0)
    assert step_s(alone, 2, 8, 64) == pytest.approx(grad_s(alone, 64) + sync_s(alone, 2, 8))


def test_with_perfect_overlap_the_longer_of_the_two_counts() -> None:
    hidden = MODEL._replace(gamma=1000.0)
    assert step_s(hidden, 1, 2, 128) == pytest.approx(grad_s(hidden, 128))


def test_a_large_power_of_a_long_time_does_not_overflow() -> None:
    slow = MODEL._replace(alpha_c=1e40, alpha_n=1e40, gamma=10.0)
    assert step_s(slow, 2, 2, 1) == pytest.approx(1e40 * 2**0.1)


def test_a_pipeline_takes_one_slot_per_micro_batch_and_the_time_to_fill() -> None:
    stages, micro_batches = 4, 6
    ends = np.zeros(
        (stages, micro_batches)
    )  # each stage takes a micro-batch when it and the one before are done
    for stage in range(stages):
        for batch in range(micro_batches):
            before = ends[stage - 1, batch] if stage else 0.0
            free = ends[stage, batch - 1] if batch else 0.0
            ends[stage, batch] = max(before, free) + 0.5
    assert pipeline_s(micro_batches, stages, 0.5) == ends[-1, -1] == pytest.approx(4.5)


def test_the_bubble_is_what_the_pipeline_idles() -> None:
    assert bubble_fraction(48, 8) == pytest.approx(1 - 48 * 0.1 / pipeline_s(48, 8, 0.1))
    assert bubble_fraction(48, 1) == 0


def test_replicas_multiply_samples_and_synchronise_once() -> None:
    assert hybrid_iteration_s(48, 2, 0.1, 0.4) == pytest.approx(4.9 + 0.4)
    assert hybrid_throughput(4, 48, 1, 2, 0.1, 0.4) == pytest.approx(4 * 48 / 5.3)


def test_gpus_that_are_no_multiple_of_the_stages_hold_no_replica() -> None:
    assert replicas_of(np.array([1, 2, 4, 8, 12, 16]), 8).tolist() == [0, 0, 0, 1, 0, 2]
