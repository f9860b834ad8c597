import numpy as np
import pytest

from stretto.estimate.pipeline import (
    bubble_fraction,
    hybrid_iteration_s,
    hybrid_throughput,
    pipeline_s,
    replicas_of,
)


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
