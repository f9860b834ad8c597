import numpy as np
import pytest
from scipy.stats import beta as beta_distribution

from stretto.model import FloatArray, floats
from stretto.policies.ones.progress import (
    EPOCHS_TO_GO,
    MOST_POINTS,
    NO_POINTS,
    NOTHING_LEARNED,
    TrainingSet,
    alpha_of,
    features_of,
    fit_regression,
    with_job,
)


def a_log(epochs: int, dataset: float = 100.0) -> FloatArray:
    done = floats(np.arange(1, epochs + 1)) * dataset
    same = np.ones(epochs)
    return features_of(dataset * same, 2.3 * same, done, 2.3 / (1 + done / dataset), 0.5 * same)


def test_before_any_job_has_ended_ten_epochs_are_thought_to_come() -> None:
    assert fit_regression(NO_POINTS) is NOTHING_LEARNED
    assert NOTHING_LEARNED.beta(a_log(3)).tolist() == [EPOCHS_TO_GO] * 3


def test_alpha_counts_epochs_and_is_at_least_one() -> None:
    assert alpha_of(np.array([0.0, 50.0, 250.0]), np.full(3, 100.0)).tolist() == [1.0, 1.0, 2.5]


def test_the_end_of_a_job_is_no_point_of_its_log() -> None:
    points = with_job(NO_POINTS, a_log(4), 400.0, np.random.default_rng(0))
    assert points.progress.tolist() == pytest.approx([0.25, 0.5, 0.75])
    assert points.epochs_done.tolist() == pytest.approx([1.0, 2.0, 3.0])


def test_the_training_set_stays_a_uniform_sample_of_all_points() -> None:
    rng = np.random.default_rng(1)
    points = NO_POINTS
    for job in range(300):
        points = with_job(points, a_log(21, dataset=100.0 + job), 21 * (100.0 + job), rng)
    assert len(points.keys) == MOST_POINTS
    jobs = points.features[:, 0] - 100.0
    assert abs(jobs.mean() - 149.5) < 10  # standard error 2.5: neither the first nor the last are preferred


def test_the_fit_finds_the_epochs_to_come_where_all_jobs_are_alike() -> None:
    rng = np.random.default_rng(2)
    alpha = np.tile(np.arange(1.0, 11.0), 100)
    progress = rng.beta(alpha, 7.0)
    log = a_log(10)
    points = TrainingSet(np.tile(log * [1, 1, 0, 0, 1], (100, 1)), alpha, progress, rng.random(1_000))
    assert fit_regression(points).beta(log[:1] * [1, 1, 0, 0, 1])[0] == pytest.approx(7.0, rel=0.1)


def test_the_fit_is_more_likely_than_what_was_believed_before() -> None:
    points = NO_POINTS
    rng = np.random.default_rng(3)
    for epochs in (5, 8, 12, 20):
        points = with_job(points, a_log(epochs, dataset=1_000.0 / epochs), 1_000.0, rng)

    def likelihood(beta: FloatArray) -> float:
        alpha = np.maximum(points.epochs_done, 1.0)
        return float(np.sum(beta_distribution.logpdf(points.progress, alpha, beta)))

    assert likelihood(fit_regression(points).beta(points.features)) > likelihood(
        NOTHING_LEARNED.beta(points.features)
    )


def test_a_job_further_on_is_expected_to_have_less_to_come() -> None:
    points = NO_POINTS
    rng = np.random.default_rng(4)
    for _ in range(20):
        points = with_job(points, a_log(20), 2_000.0, rng)
    to_come = fit_regression(points).beta(a_log(19))
    assert (np.diff(to_come) <= 0).all()
    assert to_come[0] > to_come[-1] + 5


def test_what_a_job_does_not_report_counts_as_the_mean_of_the_others() -> None:
    points = with_job(NO_POINTS, a_log(10), 1_000.0, np.random.default_rng(5))
    regression = fit_regression(points)
    silent = np.full((1, 5), np.nan)
    assert regression.beta(silent)[0] == pytest.approx(max(regression.intercept, 1.0))


@pytest.mark.parametrize(("initial_loss", "loss"), [(0.0, 1.5), (0.0, 0.0), (1e-308, 1e308), (-1e308, 1e308)])
def test_one_job_of_odd_losses_spoils_what_is_learned_of_nobody(initial_loss: float, loss: float) -> None:
    done, same = 100.0 * floats(np.arange(1, 11)), np.ones(10)
    odd = features_of(100.0 * same, initial_loss * same, done, loss * same, same)
    points = with_job(NO_POINTS, a_log(20), 2_000.0, np.random.default_rng(6))
    regression = fit_regression(with_job(points, odd, 1_000.0, np.random.default_rng(7)))
    to_come = regression.beta(a_log(20))
    assert to_come[0] > to_come[-1] + 5
    assert np.isfinite(regression.beta(odd)).all()
