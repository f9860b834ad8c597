"""A training job as the simulated world runs it."""

from dataclasses import replace
from math import inf, isnan

import numpy as np
import pytest

from stretto.estimate.efficiency import GradientNoise
from stretto.estimate.fit import fit
from stretto.estimate.goodput import BatchLimits, best_batch
from stretto.estimate.throughput import ThroughputModel
from stretto.model import Observations, Point, View, every
from stretto.sim.settings import Fidelity, SimSettings
from stretto.sim.truth.training import TrainingRun
from stretto.testing.builders import a_cluster, a_job

from .made_worlds import a_truth, on, seen_training, with_views

PAPER, ARTIFACT = SimSettings(), SimSettings(fidelity=Fidelity.ARTIFACT)
ADAPTS = 0  # no fixed batch
SYNCING = ThroughputModel(0.02, 0.004, 0.08, 0.004, 0.02, 0.002, 1.5)


def a_run(sim: SimSettings = PAPER, fixed_batch: int = 10, **truth: object) -> TrainingRun:
    made = a_truth(**truth)  # type: ignore[arg-type]
    return TrainingRun(made, made.limits, fixed_batch, sim)


@pytest.mark.parametrize(
    ("kind", "shape", "moved", "artifact", "paper"),
    [
        pytest.param(0, (2,), False, False, False, id="the same GPUs"),
        pytest.param(0, (2,), True, False, True, id="another node"),
        pytest.param(0, (1, 1), True, True, True, id="another shape"),
        pytest.param(0, (4,), True, True, True, id="more GPUs"),
        pytest.param(1, (2,), True, True, True, id="another type"),
    ],
)
def test_what_restarts_a_running_job(
    kind: int, shape: tuple[int, ...], moved: bool, artifact: bool, paper: bool
) -> None:
    for sim, restarts in ((ARTIFACT, artifact), (PAPER, paper)):
        run = a_run(sim, types=2, restart_s=30.0)
        assert run.give(0, (2,), moved=True, now_s=0.0)
        run.advance(50.0)
        assert run.give(kind, shape, moved, now_s=50.0) is restarts
        assert run.countdown_s == (30.0 if restarts else 0.0)
        assert run.starts == 1 + restarts


def test_resuming_on_the_same_gpus_restarts_too() -> None:
    run = a_run(ARTIFACT, restart_s=30.0)
    run.give(0, (2,), moved=True, now_s=0.0)
    assert not run.give(-1, (), moved=True, now_s=50.0)
    assert run.give(0, (2,), moved=True, now_s=60.0)
    assert run.countdown_s == 30.0


def test_a_restart_longer_than_a_round_goes_on_in_the_next() -> None:
    policy = with_views(on(every(60.0), at_0={"a": {0: 1}}), View.PROGRESS)
    truth = a_truth(epoch_s=100.0, epochs=1, restart_s=150.0)
    run = seen_training(policy, [a_job("a")], a_cluster(1), truth)
    recovering = [bool(snapshot.jobs.progress.recovering[0]) for snapshot in run.snapshots]
    assert run.decided_s == [0.0, 60.0, 120.0, 180.0, 240.0]
    assert recovering == [False, True, True, False, False]
    assert run.completed_s("a") == pytest.approx(250.0)


def test_a_stopped_job_makes_no_progress_and_has_no_next_epoch() -> None:
    run = a_run(restart_s=0.0)
    assert run.next_epoch_s() == inf
    run.give(0, (1,), moved=True, now_s=0.0)
    assert run.next_epoch_s() == pytest.approx(100.0)
    run.give(-1, (), moved=True, now_s=0.0)
    run.advance(1000.0)
    assert (run.progress, run.epoch) == (0.0, 0)


def test_epochs_end_at_whole_seconds_in_the_published_simulator() -> None:
    """An epoch of 10.4 s takes 10, one of 10.6 s takes 11; progress is set to its end exactly."""
    for epoch_s, takes_s in ((10.4, 10.0), (10.6, 11.0)):
        theirs, ours = a_run(ARTIFACT, epoch_s=epoch_s, restart_s=0.0), a_run(epoch_s=epoch_s, restart_s=0.0)
        for run in (theirs, ours):
            run.give(0, (1,), moved=True, now_s=0.0)
            run.advance(60.0)
            assert run.done
            assert run.progress == pytest.approx(3 * epoch_s)
        assert theirs.completed_s == 3 * takes_s
        assert ours.completed_s == pytest.approx(3 * epoch_s)


def test_no_epoch_ends_later_than_the_time_it_was_run_to() -> None:
    run = a_run(ARTIFACT, epoch_s=10.6, epochs=1, restart_s=0.0)
    run.give(0, (1,), moved=True, now_s=0.0)
    run.advance(10.7)
    assert run.completed_s == 10.7


def test_progress_over_several_calls_is_that_of_one() -> None:
    whole, pieces = a_run(epoch_s=7.0, restart_s=5.0), a_run(epoch_s=7.0, restart_s=5.0)
    for run in (whole, pieces):
        run.give(0, (1,), moved=True, now_s=0.0)
    whole.advance(17.0)
    for to_s in (1.0, 4.5, 5.0, 5.0, 11.9, 12.3, 17.0):
        pieces.advance(to_s)
    assert pieces.epoch == whole.epoch
    assert pieces.progress == pytest.approx(whole.progress)
    assert isnan(pieces.completed_s)


def test_a_step_is_worth_more_at_a_larger_batch_as_far_as_the_noise_goes() -> None:
    """gain = (σ² + |µ|²) / (σ² M0/M + |µ|²) with σ² = 3, |µ|² = 1, M = 2 M0: 4 / 2.5."""
    run = a_run(fixed_batch=20, restart_s=0.0, noise=3.0, epoch_s=1e6)
    run.give(0, (2,), moved=True, now_s=0.0)
    run.advance(50.0)
    assert run.progress == pytest.approx(50.0 * 4 / 2.5)


def test_a_slowed_down_model_makes_less_progress_but_its_steps_look_the_same() -> None:
    truth = replace(a_truth(restart_s=0.0), slowdown=1.25)
    run = TrainingRun(truth, truth.limits, 10, PAPER)
    run.give(0, (1,), moved=True, now_s=0.0)
    run.advance(50.0)
    assert run.progress == pytest.approx(40.0)
    assert run.evidence is not None
    assert run.evidence.observed[0].points[0].step_s == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("gpus", "local_batch", "accumulation"),
    [
        pytest.param(1, 10, 3, id="as few passes as memory allows"),
        pytest.param(2, 10, 1, id="fewer on more GPUs"),
        (4, 10, 0),
        pytest.param(8, 5, 0, id="smaller parts"),
    ],
)
def test_a_fixed_batch_is_split_over_the_gpus(gpus: int, local_batch: int, accumulation: int) -> None:
    run = a_run(fixed_batch=40, restart_s=0.0)
    run.give(0, (gpus,), moved=True, now_s=0.0)
    run.advance(20.0)
    assert (run.local_batch, run.accumulation) == (local_batch, accumulation)


def adaptive(gpus: int = 2, sim: SimSettings = PAPER) -> TrainingRun:
    run = a_run(
        sim, ADAPTS, epoch_s=1e6, restart_s=0.0, params=SYNCING, noise=9.0, max_batch=400, init_batch=16
    )
    run.give(0, (gpus,), moved=True, now_s=0.0)
    return run


def test_a_job_that_was_never_measured_starts_with_its_initial_batch() -> None:
    run = adaptive(gpus=2)
    assert (run.local_batch, run.accumulation) == (8, 0)


def test_once_measured_a_job_chooses_the_batch_of_most_goodput_by_its_own_model() -> None:
    run = adaptive(gpus=2)
    run.advance(30.0)
    assert run.evidence is not None
    limits = BatchLimits(16, 400, 1, 10)
    best = best_batch(fit(run.evidence.observed[0]), GradientNoise(1.0, 9.0), limits, 1, 2)
    assert (run.local_batch, run.accumulation) == (best.local_batch, best.accumulation)
    assert best.total_batch > 16


def test_every_operating_point_is_recorded_once_with_its_true_times() -> None:
    run = a_run(types=2, params=SYNCING, restart_s=5.0, epoch_s=1e6)
    run.give(0, (2, 2), moved=True, now_s=0.0)
    run.advance(5.0)
    assert run.evidence is not None
    assert not any(run.evidence.observed)  # it only restarted so far
    run.advance(20.0)
    run.advance(40.0)
    step_s, sync_s = run.truth.step(0, (2, 2), 3)
    assert run.evidence.observed == (
        Observations((Point(2, 4, 3, step_s - sync_s, step_s),)),
        Observations(),
    )
    run.give(1, (1,), moved=True, now_s=40.0)
    run.advance(50.0)
    assert [len(observed) for observed in run.evidence.observed] == [1, 1]


def test_the_noise_of_gradients_is_reported_as_of_the_latest_epoch() -> None:
    truth = replace(a_truth(epoch_s=100.0, epochs=2, restart_s=0.0), noise=(2.0, 5.0))
    run = TrainingRun(truth, truth.limits, 10, PAPER)
    assert run.evidence is not None
    assert isnan(run.evidence.grad_var)
    run.give(0, (1,), moved=True, now_s=0.0)
    run.advance(50.0)
    assert (run.evidence.grad_sqr, run.evidence.grad_var) == (1.0, 2.0)
    run.advance(150.0)
    assert run.evidence.grad_var == 5.0


def test_a_replica_of_several_gpus_counts_once() -> None:
    run = a_run(replica_gpus=np.array([4]))
    run.give(0, (8, 8), moved=True, now_s=0.0)
    assert run.replicas == 4


def test_a_job_that_has_ended_fits_no_model_for_a_batch_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    run, had_ended = a_run(PAPER, fixed_batch=ADAPTS), list[bool]()

    def noted(observed: Observations) -> ThroughputModel:
        had_ended.append(run.done)
        return fit(observed)

    monkeypatch.setattr("stretto.sim.truth.training.fit", noted)
    run.give(0, (2,), moved=True, now_s=0.0)
    run.advance(1e7)
    assert run.done
    assert had_ended
    assert not any(had_ended)
