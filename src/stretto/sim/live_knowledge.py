"""What a live service would know of the jobs of a simulation, where the truth is not shown."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import nan

import numpy as np

from stretto.estimate.durations import USUAL_S, believed_durations
from stretto.model import BoolArray, Durations, FloatArray, IntArray, Purpose, Requests
from stretto.sim.accounting import Accounting
from stretto.sim.truth.training import TrainingRun


@dataclass(frozen=True)
class LiveKnowledge:
    """Owners state how long recorded jobs take, and how many epochs trainings have; the rest is reported.

    A training tells how large an epoch is and how fast it is once it has done a step. What a stop and a start
    take is known once a job was stopped and went on.
    """

    requests: Requests
    training: Mapping[int, TrainingRun]
    stated_s: FloatArray  # (all jobs,) NaN where the owner states nothing
    charged_s: FloatArray  # (all jobs,) what a stop and a start take in this world

    def durations(self, rows: IntArray, now_s: float, accounting: Accounting) -> Durations:
        """As a service works them out: an hour where nothing is stated or told."""
        held_gpus, asked_gpus = accounting.held_gpus[rows], self.requests.gpus[rows]
        since_s = np.where(held_gpus > 0, now_s - accounting.held_since_s[rows], 0.0)
        had_s = (accounting.attained_gpu_s[rows] + held_gpus * since_s) / asked_gpus
        # A job that serves does so until its time is over, whatever it holds.
        had_s = np.where(self.requests.serves[rows], accounting.executed_s[rows] + since_s, had_s)
        stated_s = self.stated_s[rows]
        whole_s = np.where(np.isfinite(stated_s), stated_s, USUAL_S)
        return believed_durations(whole_s, had_s, self._told_left_s(rows), held_gpus, asked_gpus)

    def work(self, rows: IntArray, true: FloatArray) -> FloatArray:
        """(jobs,) of `true` what is known: of trainings that have begun, and of jobs that count no epochs.

        Recorded jobs count no steps.
        """
        return np.where(self._counts_work(rows), true, nan)

    def suspensions_s(self, rows: IntArray, accounting: Accounting) -> FloatArray:
        """(jobs,) of jobs that were stopped and went on, else of their model, else of all; NaN: of none."""
        restarts = np.maximum(accounting.starts - 1, 0).astype(np.float64)
        if not restarts.any():
            return np.full(len(rows), nan)
        took_s, model = restarts * self.charged_s, self._model
        with np.errstate(invalid="ignore"):
            of_model = np.bincount(model, took_s) / np.bincount(model, restarts)
        known_s = np.where(np.isnan(of_model), took_s.sum() / restarts.sum(), of_model)[model[rows]]
        return np.where(restarts[rows] > 0, self.charged_s[rows], known_s)

    def _told_left_s(self, rows: IntArray) -> FloatArray:
        told = np.full(len(rows), nan)
        for position, row in enumerate(rows.tolist() if self.training else ()):
            run = self.training.get(row)
            if run is not None and run.progress and not self.requests.serves[row]:
                told[position] = run.left_s()
        return told

    def _counts_work(self, rows: IntArray) -> BoolArray:
        """(jobs,) whether its end is known in steps: a file says so, but of epochs only their number."""
        counts = np.zeros(len(rows), dtype=np.bool_)
        for position, row in enumerate(rows.tolist() if self.training else ()):
            run = self.training.get(row)
            if run is not None:
                counts[position] = run.progress > 0 or self.requests.jobs[row].purpose is not Purpose.TRAINING
        return counts

    @cached_property
    def _model(self) -> IntArray:
        """(all jobs,) which model each has, by number; one that names none has that of all such."""
        number: dict[str, int] = {}
        models = [number.setdefault(job.model, len(number)) for job in self.requests.jobs]
        return np.array(models, dtype=np.int64)
