import numpy as np
import pytest

from stretto.catalogue.build import MULTI_NODE_MARGIN, fit_noise, fit_steps
from stretto.catalogue.figures import Curves, Points
from stretto.estimate.throughput import grad_s, step_s
from stretto.model.arrays import FloatArray, floats

TRUE = floats([0.02, 0.003, 0.2, 0.004, 0.05, 0.001, 2.0])


def points(with_grad: bool, multi_node: bool = True, noise: float = 0.0) -> Points:
    shapes = [(1, 1), (1, 2), (1, 4), (1, 8)] + ([(2, 2), (2, 8), (2, 16), (4, 32)] if multi_node else [])
    rows = floats([(nodes, gpus, local) for nodes, gpus in shapes for local in (8, 16, 32, 64)])
    nodes, gpus, local = rows.T
    error = np.exp(noise * np.random.default_rng(0).standard_normal(len(rows)))
    grad: FloatArray = grad_s(TRUE, local) if with_grad else np.full(len(rows), np.nan)
    return Points(nodes, gpus, local, grad, step_s(TRUE, nodes, gpus, local) * error)


@pytest.mark.parametrize("with_grad", [True, False])
def test_steps_made_by_the_model_are_explained(with_grad: bool) -> None:
    found = fit_steps(points(with_grad))
    assert found.mean_error < 0.02  # penalties pull a little
    assert found.params[:2] == pytest.approx(TRUE[:2], rel=0.1)
    assert found.points == 32
    assert found.across_nodes


def test_steps_between_the_measured_ones_are_foretold() -> None:
    found = fit_steps(points(with_grad=False, noise=0.02))
    nodes, gpus, local = floats([1, 2, 3]), floats([6, 12, 24]), floats([24, 48, 12])
    assert step_s(found.params, nodes, gpus, local) == pytest.approx(
        step_s(TRUE, nodes, gpus, local), rel=0.1
    )


def test_one_odd_measurement_does_not_bend_the_rest() -> None:
    good = points(with_grad=False)
    odd = good.step_s.copy()
    odd[5] *= 4
    found = fit_steps(Points(good.nodes, good.gpus, good.local_batch, good.grad_s, odd))
    predicted = step_s(found.params, good.nodes, good.gpus, good.local_batch)
    assert np.median(np.abs(predicted / good.step_s - 1)) < 0.05
    assert found.worst_error > 0.5  # and it is told


def test_across_nodes_is_assumed_a_little_slower_where_nothing_was_measured() -> None:
    found = fit_steps(points(with_grad=True, multi_node=False))
    assert not found.across_nodes
    assert found.params[2:4] == pytest.approx(MULTI_NODE_MARGIN * found.params[4:6])


def test_the_noise_that_made_training_curves_is_found_again() -> None:
    start, end, first = 500.0, 50_000.0, 128
    batches = (128, 512, 2048)
    fraction = (np.arange(100) + 0.5) / 100
    noise = start ** (1 - fraction) * end**fraction
    progress = np.tile(np.arange(1, 101) * 300.0, (3, 1))
    gain = (noise / first + 1) / (noise / floats(batches)[:, None] + 1)
    found = fit_noise(Curves(batches, progress, np.cumsum(300.0 / gain, axis=1)))
    assert (found.start, found.end) == pytest.approx((start, end), rel=0.01)
    assert found.mean_error < 1e-3
