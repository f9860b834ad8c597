"""The truth about every job of a workload, and what of it each view shows."""

from collections.abc import Mapping
from functools import cached_property, lru_cache
from math import inf, nan
from typing import Any

import numpy as np

from stretto.model import (
    Allocation,
    BoolArray,
    Durations,
    Evidence,
    FloatArray,
    IntArray,
    Learning,
    MeasuredSpeeds,
    Progress,
    Requests,
    Verb,
    View,
)
from stretto.sim.accounting import Accounting
from stretto.sim.live_knowledge import LiveKnowledge
from stretto.sim.settings import Knowledge, SimSettings
from stretto.sim.truth.recorded import RecordedRuns, Tables, reach_of
from stretto.sim.truth.serving import ServingRun
from stretto.sim.truth.training import TrainingRun, TrainingTruth, step_gain, steps_left
from stretto.traces.learning import LearningCurve

_NOTHING_REPORTED = np.zeros(0)
DONE_S = 1e-6  # a recorded job with less than this left has ended; rounding of times near 1e7 s


class Physics:
    """Training jobs as objects, recorded jobs as columns, behind one face."""

    def __init__(
        self,
        requests: Requests,
        training: Mapping[int, TrainingRun],
        recorded: RecordedRuns,
        tables: Tables,
        settings: SimSettings,
        seed: int = 0,
        learning: Mapping[int, LearningCurve] | None = None,
    ) -> None:
        """Rows of `training` are those of the workload; all others are recorded jobs."""
        self.requests = requests
        self.training = training
        self.recorded = recorded
        self.tables = tables
        self.learning = learning or {}
        self.settings = settings
        self._training_rows: BoolArray = np.zeros(len(requests.jobs), dtype=np.bool_)
        self._training_rows[list(training)] = True
        nothing = np.full((len(requests.cluster.types), 1), nan)
        self._unmeasured = MeasuredSpeeds(nothing, nothing)
        self._wrong_by = wrong_by(len(requests.jobs), settings, seed)
        self._work_wrong_by = work_wrong_by(len(requests.jobs), settings, seed)
        self._found_tables = np.empty(len(requests.jobs), dtype=np.object_)
        self._has_table: BoolArray = np.zeros(len(requests.jobs), dtype=np.bool_)
        self._ends_s = np.full(len(requests.jobs), inf)

    def kept_s(self) -> FloatArray:
        """(all jobs,) for how long each that serves has kept its service level; NaN for all others."""
        kept = np.full(len(self.requests.jobs), nan)
        for row, run in self.training.items():
            if isinstance(run, ServingRun):
                kept[row] = run.kept_s
        return kept

    def is_training(self, row: int) -> bool:
        """Whether it runs epoch by epoch."""
        return row in self.training

    def epochs(self, row: int) -> int:
        """Epochs that a training job has finished; 0 for a recorded one."""
        run = self.training.get(row)
        return run.epoch if run is not None else 0

    def needs_watching(self, row: int, watches_training: bool) -> bool:
        """Whether the world must look at it between decisions."""
        return watches_training or row not in self.training

    def next_s(self, row: int) -> float:
        """When it next ends an epoch, or itself, if nothing changes."""
        run = self.training.get(row)
        return run.next_epoch_s() if run is not None else float(self._ends_s[row])

    def advance(self, row: int, now_s: float) -> float:
        """Run one job up to now; when it ended, NaN while it has not."""
        run = self.training.get(row)
        if run is not None:
            run.advance(now_s)
            return run.completed_s
        ended_s = float(self._ends_s[row])
        return ended_s if ended_s <= now_s + DONE_S else nan

    def give(self, row: int, after: Allocation, verb: Verb, resumes: bool, now_s: float) -> bool:
        """Change one job's GPUs; whether that (re)starts it. `resumes`: it has run before.

        A job that moves is stopped and loses what it has not saved; one that changes its size is not. In a
        profiling run it trains as in any other, where the settings do not say otherwise.
        """
        run, moved = self.training.get(row), verb is not Verb.RETUNE
        # A profiling run may have fewer GPUs than one copy of a model that is cut into stages.
        can_train = run is None or run.replicas_on(after.kind, after.shape) > 0
        if after.profiling and not (can_train and self.settings.profiling_trains):
            self.take(row, now_s)
            return False
        if run is not None:
            run.reach = reach_of(after, self.requests.cluster, self.settings.crossing_loss)
            return run.give(after.kind, after.shape, moved, now_s, after.local_batch)
        recorded, settings = self.recorded, self.settings
        runs = recorded.speed[row] > 0
        resized = runs and recorded.kind[row] == after.kind and moved and settings.resize_s is not None
        starts = (moved or not runs) and not resized
        if resized:
            overhead_s = settings.resize_s or 0.0
        elif starts:
            overhead_s = (
                settings.restart_s + settings.restart_per_gpu_s * (after.gpus - 1) if resumes else 0.0
            )
            if runs and verb is Verb.MOVE and not self._keeps_progress(row):
                recorded.lose_progress(row, now_s)
        else:
            overhead_s = max(float(recorded.since_s[row]) - now_s, 0.0)  # what it has not sat out yet
        self._ends_s[row] = recorded.give(row, after, now_s, overhead_s)
        return starts

    def take(self, row: int, now_s: float) -> None:
        """Take one job's GPUs away."""
        run = self.training.get(row)
        if run is not None:
            run.give(-1, (), moved=True, now_s=now_s)
            return
        self._ends_s[row] = self.recorded.give(row, None, now_s, 0.0)
        if not self._keeps_progress(row):
            self.recorded.lose_progress(row, now_s)

    def _keeps_progress(self, row: int) -> bool:
        checkpoints = self.requests.jobs[row].checkpoints
        return self.settings.checkpoints if checkpoints is None else checkpoints

    def known(
        self, rows: IntArray, now_s: float, views: frozenset[View], accounting: Accounting
    ) -> dict[str, Any]:
        """The columns that these views show."""
        columns: dict[str, Any] = {}
        if View.PROGRESS in views:
            columns["known_progress"] = self._progress(rows, now_s, accounting)
        if View.ORACLE_DURATION in views:
            columns["known_durations"] = self._durations(rows, now_s, accounting)
        if View.ESTIMATED_DURATION in views:
            columns["known_estimates"] = self._estimates(rows, now_s, accounting)
        if View.REMAINING_WORK in views:
            columns["known_work"] = self._remaining_work(rows, now_s)
        if View.THROUGHPUT_TABLE in views:
            columns["known_tables"] = self._tables_of(rows)
        elif View.GOODPUT_MODEL in views:  # of recorded jobs there is nothing else to know
            columns["known_tables"] = [
                self._unmeasured if row in self.training else self.tables[row] for row in rows.tolist()
            ]
        if View.GOODPUT_MODEL in views:
            columns["known_evidence"] = [self._evidence(row) for row in rows.tolist()]
        if View.LEARNING in views:
            columns["known_learning"] = self._learning(rows, now_s)
        if View.CPU_DEMAND in views:
            cpus = self.recorded.cpus_per_gpu
            columns["known_cpu_demand"] = np.full(len(rows), nan) if cpus is None else cpus[rows]
        return columns

    def _evidence(self, row: int) -> Evidence | None:
        """What a training job and, where that is shared, its model have shown; None of a recorded job."""
        run = self.training.get(row)
        if run is None:
            return None
        run.learn_of_model()
        return run.evidence

    def _tables_of(self, rows: IntArray) -> list[MeasuredSpeeds]:
        """Measured speeds by row; each is looked up once in a job's life."""
        for row in rows[~self._has_table[rows]].tolist():
            self._found_tables[row], self._has_table[row] = self.tables[row], True
        found: list[MeasuredSpeeds] = self._found_tables[rows].tolist()
        return found

    def _learning(self, rows: IntArray, now_s: float) -> Learning:
        """What every job has reported by the end of its last epoch."""
        samples, dataset, initial_loss, loss, metric = np.full((5, len(rows)), nan)
        history = [_NOTHING_REPORTED] * len(rows)
        left = self.recorded.left_now_s(rows, now_s)
        for position, row in enumerate(rows.tolist() if self.learning else ()):
            curve = self.learning.get(row)
            if curve is None:
                continue
            run = self.training.get(row)
            if run is not None:
                done, samples[position] = run.epoch, run.samples
            else:
                whole = 1.0 - float(left[position]) / float(self.recorded.work_s[row])
                done = int(whole * curve.epochs + DONE_S)
                samples[position] = whole * curve.epochs * curve.dataset_samples
            dataset[position], initial_loss[position] = curve.dataset_samples, curve.initial_loss
            if done:
                history[position] = curve.metrics[:done]
                loss[position], metric[position] = (
                    curve.loss(done),
                    curve.metrics[min(done, curve.epochs) - 1],
                )
        return Learning(samples, dataset, initial_loss, loss, metric, history)

    def _progress(self, rows: IntArray, now_s: float, accounting: Accounting) -> Progress:
        held_gpus = accounting.held_gpus[rows]
        since_s = np.where(held_gpus > 0, now_s - accounting.held_since_s[rows], 0.0)
        starts = accounting.starts[rows]
        recovering = (held_gpus > 0) & (self.recorded.since_s[rows] > now_s)
        epochs = np.zeros(len(rows), dtype=np.int64)
        for position, row in enumerate(rows.tolist() if self.training else ()):
            run = self.training.get(row)
            if run is not None:
                epochs[position] = run.epoch
                recovering[position] = bool(run.shape) and run.countdown_s > 0
        return Progress(
            executed_s=accounting.executed_s[rows] + since_s,
            attained_gpu_s=accounting.attained_gpu_s[rows] + held_gpus * since_s,
            first_start_s=accounting.first_start_s[rows],
            last_stop_s=accounting.last_stop_s[rows],
            restarts=np.maximum(starts - 1, 0),
            largest_held_gpus=accounting.largest_held[rows],
            epochs=epochs,
            recovering=recovering,
            profiled_s=accounting.profiled_s[rows] + np.where(accounting.profiling[rows], since_s, 0.0),
            suspension_s=self._suspensions_s(rows, accounting),
            resize_s=self._resizes_s(rows),
        )

    @cached_property
    def _live_knowledge(self) -> LiveKnowledge | None:
        """What is known instead of the truth; None: the truth is."""
        if self.settings.knowledge is Knowledge.TRUE:
            return None
        stated_s = self.recorded.work_s.copy()
        for row, run in self.training.items():
            stated_s[row] = run.truth.epoch_ends[-1] if isinstance(run, ServingRun) else nan
        return LiveKnowledge(self.requests, self.training, stated_s * self._wrong_by, self._charged_s)

    def _suspensions_s(self, rows: IntArray, accounting: Accounting) -> FloatArray:
        known = self._live_knowledge
        return self._charged_s[rows] if known is None else known.suspensions_s(rows, accounting)

    @cached_property
    def _charged_s(self) -> FloatArray:
        """(all jobs,) what this world charges each, on what it asks for: as a first run measures."""
        settings = self.settings
        more_gpus = (self.requests.gpus - 1).astype(np.float64)
        took_s = settings.restart_s + settings.restart_per_gpu_s * more_gpus
        for row, run in self.training.items():
            set_s = settings.start_s
            took_s[row] = run.truth.restart_s if set_s is None else set_s
        return took_s

    def _resizes_s(self, rows: IntArray) -> FloatArray:
        """(jobs,) what this world charges for a change of size; NaN where that is a stop and a start."""
        resize_s = self.settings.resize_s
        return np.full(len(rows), nan if resize_s is None else resize_s)

    def _durations(self, rows: IntArray, now_s: float, accounting: Accounting) -> Durations:
        if self._live_knowledge is not None:
            return self._live_knowledge.durations(rows, now_s, accounting)
        duration_s = self.recorded.work_s[rows]
        remaining_s = self.recorded.left_now_s(rows, now_s)
        for position, row in enumerate(rows.tolist()):
            run = self.training.get(row)
            if run is not None:
                duration_s[position], remaining_s[position] = self._alone(row, run)
        return Durations(duration_s, remaining_s)

    def _estimates(self, rows: IntArray, now_s: float, accounting: Accounting) -> Durations:
        """Durations with the errors that the settings ask for."""
        if self._live_knowledge is not None:  # owners are wrong, reports are not
            return self._live_knowledge.durations(rows, now_s, accounting)
        true = self._durations(rows, now_s, accounting)
        return Durations(true.duration_s * self._wrong_by[rows], true.remaining_s * self._wrong_by[rows])

    def _remaining_work(self, rows: IntArray, now_s: float) -> FloatArray:
        """Steps that are left: of the initial batch where jobs choose their own, else of the fixed one.

        With the errors that the settings ask for.
        """
        left = self.recorded.left_now_s(rows, now_s)
        for position, row in enumerate(rows.tolist()):
            run = self.training.get(row)
            if run is not None:
                done = run.progress
                left[position] = steps_left(run.truth, run.fixed_batch, run.epoch)
                if not run.done:
                    gain = step_gain(run.truth, run.fixed_batch, run.epoch)
                    begun = run.truth.epoch_ends[run.epoch - 1] if run.epoch else 0.0
                    left[position] -= (done - begun) / gain
        left *= self._work_wrong_by[rows]
        return left if self._live_knowledge is None else self._live_knowledge.work(rows, left)

    def _alone(self, row: int, run: TrainingRun) -> tuple[float, float]:
        """(whole, remaining) seconds of a training job on what it asked for, on its fastest GPU type."""
        job = self.requests.jobs[row]
        ends_s = alone_s(run.truth, job.gpus, job.batch_size or run.truth.limits.init_batch)
        ends = run.truth.epoch_ends
        if not ends_s:
            return inf, inf
        if run.done:
            return ends_s[-1], 0.0
        before = ends[run.epoch - 1] if run.epoch else 0.0
        from_s = ends_s[run.epoch - 1] if run.epoch else 0.0
        within = (run.progress - before) / (ends[run.epoch] - before)
        return ends_s[-1], ends_s[-1] - (from_s + within * (ends_s[run.epoch] - from_s))


@lru_cache(maxsize=4096)
def alone_s(truth: TrainingTruth, gpus: int, batch: int) -> tuple[float, ...]:
    """Seconds to the end of each epoch on consolidated GPUs of the fastest type, never interrupted.

    Empty where the job can run on none of the types with so many GPUs.
    """
    times = [truth.alone_s(kind, gpus, batch) for kind in range(len(truth.limits.min_local))]
    return min((ends_s for ends_s in times if ends_s), key=lambda ends_s: ends_s[-1], default=())


LIE = 0.1  # what a liar says over what is true; chosen
LEAST_TOLD = 0.01  # over what is true; chosen


def wrong_by(jobs: int, settings: SimSettings, seed: int) -> FloatArray:
    """(all jobs,) what estimated durations are multiplied by: 1 + ε, never below a hundredth.

    A share `wrong_durations` of the jobs has ε uniform in ±25 % (Lyra, table 9). On top of it ε is normal
    with the standard deviation `duration_error` for all jobs (UniSched, figure 9d). Of liars a tenth of that.
    """
    draw = np.random.default_rng([seed, 9])
    wrong = draw.random(jobs) < settings.wrong_durations
    error = np.where(wrong, draw.uniform(-0.25, 0.25, jobs), 0.0)
    error += draw.normal(0.0, 1.0, jobs) * settings.duration_error
    return np.maximum(1.0 + error, LEAST_TOLD) * _lies(jobs, settings, seed)


def work_wrong_by(jobs: int, settings: SimSettings, seed: int) -> FloatArray:
    """(all jobs,) the same of work: ε is normal with the standard deviation `work_error`."""
    error = np.random.default_rng([seed, 10]).normal(0.0, 1.0, jobs) * settings.work_error
    return np.maximum(1.0 + error, LEAST_TOLD) * _lies(jobs, settings, seed)


def _lies(jobs: int, settings: SimSettings, seed: int) -> FloatArray:
    return np.where(np.random.default_rng([seed, 11]).random(jobs) < settings.liars, LIE, 1.0)
