"""From what a snapshot shows of every job to a matrix of speeds."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import ClassVar, TypeVar

import numpy as np

from stretto.estimate.fit import Memo
from stretto.estimate.goodput_rows import Fit, Held, Question, answer_all, chosen_batches, frame_of
from stretto.estimate.other_types import Untried, forbid, without_profiles
from stretto.estimate.throughput import Choice, Mode
from stretto.model import (
    BatchChoice,
    Configurations,
    FloatArray,
    InputError,
    MeasuredSpeeds,
    Snapshot,
    Speeds,
    View,
    frozen,
    no_speeds,
)

REMEMBERED_ROWS = 32_768  # chosen: rows of goodput kept; about 20 MB at 30 columns


class Share(StrEnum):
    """Whose evidence counts for a job. The world keeps it, so that a simulation asks it to."""

    JOB = "job"  # its own
    MODEL = "model"  # that of all jobs of its model, also of those that have ended


@dataclass(frozen=True)
class NoEstimate:
    """For policies that do not look at speeds."""

    views: ClassVar[frozenset[View]] = frozenset()

    def estimate(self, snapshot: Snapshot, configurations: Configurations) -> Speeds:
        """Nothing is believed about any job."""
        return no_speeds(len(snapshot.jobs), len(snapshot.cluster.types), configurations)


@dataclass(frozen=True)
class MeasuredTables:
    """Speeds that were measured before a job runs, at its own batch size."""

    views: ClassVar[frozenset[View]] = frozenset({View.THROUGHPUT_TABLE})

    def estimate(self, snapshot: Snapshot, configurations: Configurations) -> Speeds:
        """Steps per second; nodes beyond the fewest possible count as spread."""
        jobs = snapshot.jobs
        blank = no_speeds(len(jobs), len(snapshot.cluster.types), configurations)
        if not len(jobs):
            return blank
        per_node = tuple(snapshot.cluster.gpus_per_node.tolist())
        rows = [_table_row(table, configurations, per_node) for table in jobs.tables]
        requested = [
            _requested(table, gpus) for table, gpus in zip(jobs.tables, jobs.gpus.tolist(), strict=True)
        ]
        return Speeds(
            configurations=configurations,
            per_s=np.array(rows),
            requested_per_s=np.array(requested),
            modelled=np.ones(len(jobs), dtype=np.bool_),
            observed_gpus=np.repeat(jobs.max_gpus[:, None], len(per_node), axis=1),
            reach_gpus=blank.reach_gpus,
        )


@lru_cache(maxsize=65_536)
def _table_row(
    table: MeasuredSpeeds, configurations: Configurations, per_node: tuple[int, ...]
) -> FloatArray:
    """(configs,) a table looked up at every configuration."""
    gpus = np.minimum(configurations.gpus, table.per_s.shape[1] - 1)
    fewest = -(-configurations.gpus // np.array(per_node)[configurations.kind])
    consolidated = table.per_s[configurations.kind, gpus]
    spread = table.spread_per_s[configurations.kind, gpus]
    per_s = np.where(configurations.nodes > fewest, spread, consolidated)
    return frozen(np.where(configurations.gpus < table.per_s.shape[1], per_s, np.nan))


def _requested(table: MeasuredSpeeds, gpus: int) -> FloatArray:
    """(types,) speed on exactly so many GPUs."""
    return table.per_s[:, gpus] if gpus < table.per_s.shape[1] else np.full(len(table.per_s), np.nan)


@dataclass(frozen=True)
class OnlineGoodput:
    """Goodput from what each job has shown so far, carried over between GPU types.

    Sia (SOSP 2023), section 3.2: see `bootstrap`. A job that has shown nothing yet is believed to be as its
    profile of one replica says, or, without one, alike on all types. Its replicas are believed to scale
    perfectly. In the oracle's mode the world shows every job's true speeds before it starts, as observations
    like any other.
    """

    views: ClassVar[frozenset[View]] = frozenset({View.GOODPUT_MODEL})

    mode: Mode = Mode.BOOTSTRAP  # what is known beforehand
    reference: Choice = Choice.MOST_OBSERVED  # whose model stands in for that of another type
    fit: Fit = Fit.BEST  # how models are fitted
    share: Share = Share.JOB  # whose evidence counts; a live service always counts that of the model
    untried: Untried = Untried.PERFECT  # in mode no-prof: what is believed of types that a job has not tried
    _rows: Memo[Question, FloatArray] = field(
        default_factory=lambda: Memo(answer_all, REMEMBERED_ROWS), repr=False, compare=False
    )

    _batches: Memo[Held, BatchChoice] = field(
        default_factory=lambda: Memo(chosen_batches, REMEMBERED_ROWS), repr=False, compare=False
    )

    def __post_init__(self) -> None:
        """Check the parameters; texts will do."""
        object.__setattr__(self, "mode", _one_of(Mode, self.mode, "mode"))
        object.__setattr__(self, "reference", _one_of(Choice, self.reference, "reference"))
        object.__setattr__(self, "fit", _one_of(Fit, self.fit, "fit"))
        object.__setattr__(self, "share", _one_of(Share, self.share, "share"))
        object.__setattr__(self, "untried", _one_of(Untried, self.untried, "untried"))
        if self.fit is Fit.PUBLISHED:
            import scipy.optimize  # noqa: F401  (now, not in the middle of the first decision)

    def estimate(self, snapshot: Snapshot, configurations: Configurations) -> Speeds:
        """Goodput in steps of the initial batch per second; where only a table is known, what it says."""
        if self.mode is Mode.NO_PROF and self.untried is Untried.MEASURED:
            snapshot = without_profiles(snapshot)
        speeds = self._believed(snapshot, configurations)
        if self.mode is Mode.NO_PROF:
            forbid(speeds, self.untried)
        return speeds

    def _believed(self, snapshot: Snapshot, configurations: Configurations) -> Speeds:
        jobs = snapshot.jobs
        types, width = len(snapshot.cluster.types), len(configurations)
        evidence = jobs.evidence
        # Jobs of which only a table is known get its rows; all other rows are overwritten below.
        if any(job_evidence is None for job_evidence in evidence):
            speeds = MeasuredTables().estimate(snapshot, configurations)
        else:
            speeds = no_speeds(len(jobs), types, configurations)
        known = [row for row, job_evidence in enumerate(evidence) if job_evidence is not None]
        if not known:
            return speeds
        shown = [job_evidence for job_evidence in evidence if job_evidence is not None]
        requested = jobs.gpus.tolist()
        per_node = tuple(snapshot.cluster.gpus_per_node.tolist())
        frame = frame_of(configurations, per_node, self._scales_as, self.reference, self.fit)
        # One question for each job; equal ones are answered once, and answers are kept from round to round.
        questions = [
            Question(
                frame,
                job_evidence.limits,
                job_evidence.observed,
                job_evidence.grad_sqr,
                job_evidence.grad_var,
                job_evidence.fixed_batch,
                requested[row],
            )
            for row, job_evidence in zip(known, shown, strict=True)
        ]
        answers = np.array(self._rows.of(questions))
        speeds.per_s[known] = answers[:, :width]
        speeds.requested_per_s[known] = answers[:, width:]
        speeds.modelled[known] = [any(job_evidence.observed) for job_evidence in shown]
        speeds.observed_gpus[known] = [
            [
                seen.largest_gpus * int(each)
                for seen, each in zip(job_evidence.observed, job_evidence.limits.replica_gpus, strict=True)
            ]
            for job_evidence in shown
        ]
        speeds.reach_gpus[known] = [
            job_evidence.limits.reach_gpus * int(job_evidence.limits.replica_gpus.max())
            for job_evidence in shown
        ]
        return speeds

    @property
    def _scales_as(self) -> Mode:
        """Bootstrapping from no profile scales an untried type as those that were tried."""
        is_measured = self.mode is Mode.NO_PROF and self.untried is Untried.MEASURED
        return Mode.BOOTSTRAP if is_measured else self.mode

    def batches(
        self,
        snapshot: Snapshot,
        configurations: Configurations,
        allocations: Sequence[tuple[int, int, int, int]],
    ) -> list[BatchChoice]:
        """The batch of most goodput for each (row, GPU type, nodes, GPUs); all 0: nothing can be said."""
        per_node = tuple(snapshot.cluster.gpus_per_node.tolist())
        frame = frame_of(configurations, per_node, self._scales_as, self.reference, self.fit)
        # All jobs are asked about in one call; what was answered before comes from the memo.
        asked = []
        for row, kind, nodes, gpus in allocations:
            evidence = snapshot.jobs.evidence[row]
            assert evidence is not None, "a batch is chosen by what a job has shown"
            question = Question(
                frame,
                evidence.limits,
                evidence.observed,
                evidence.grad_sqr,
                evidence.grad_var,
                evidence.fixed_batch,
                gpus,
            )
            asked.append(Held(question, kind, nodes, gpus))
        return self._batches.of(asked)


Value = TypeVar("Value", bound=StrEnum)


def _one_of(values: type[Value], given: str, name: str) -> Value:
    if given not in [value.value for value in values]:
        raise InputError(f"estimate.{name} must be one of {', '.join(values)}, got {given!r}")
    return values(given)
