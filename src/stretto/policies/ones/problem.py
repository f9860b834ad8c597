"""Who takes part in the evolution, on which GPUs, and what every count of GPUs is worth to whom."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stretto.model import BoolArray, IntArray, MeasuredSpeeds, Snapshot
from stretto.policies.common.admission import most_gpus_of_one_job
from stretto.policies.common.speed_curves import unstoppable
from stretto.policies.ones.evolution import ProblemInstance
from stretto.policies.ones.nodes import Gpus, gpus_beside
from stretto.policies.ones.throughput import Batches, batches_of, runs_on


@dataclass(frozen=True, eq=False)
class Participants:
    """Jobs as ONES sees them, GPUs counted as they are held; columns are (jobs,)."""

    gpus: Gpus  # that may change hands
    stays: BoolArray  # keeps exactly what it holds
    runs: BoolArray  # takes part and holds GPUs
    home: IntArray  # the type to which it keeps; -1: takes no part
    possible: BoolArray  # (jobs, types) where it could ever run
    least: IntArray  # fewest GPUs
    most: IntArray  # most GPUs
    step: IntArray  # GPUs by which it grows
    batches: Batches
    least_limit: IntArray  # of its batch
    most_limit: IntArray  # at least as large


def participants_of(snapshot: Snapshot) -> Participants:
    """Everybody but the unstoppable, on usable GPUs that nobody unstoppable holds."""
    jobs, cluster = snapshot.jobs, snapshot.cluster
    stays = unstoppable(jobs)
    gpus = gpus_beside(snapshot, stays)
    free = np.bincount(gpus.kind, minlength=len(cluster.types))
    # Tables are read only where some job has reported nothing: reading them needs the view.
    tables: Sequence[MeasuredSpeeds | None] = [None] * len(jobs)
    if any(one is None for one in jobs.evidence):
        tables = jobs.tables
    runs_there = [runs_on(one, table) for one, table in zip(jobs.evidence, tables, strict=True)]
    possible = jobs.allowed_kinds & np.array(runs_there, dtype=np.bool_).reshape(jobs.allowed_kinds.shape)
    fewest = jobs.min_gpus[:, None] * cluster.stand_ins
    within = np.minimum(free, most_gpus_of_one_job(cluster))
    home = _homes(snapshot, possible & (fewest <= within) & ~stays[:, None], free)

    kind = np.maximum(home, 0)
    each = cluster.stand_ins[kind]
    replicas = [
        1 if one is None else int(one.limits.replica_gpus[at])
        for one, at in zip(jobs.evidence, kind.tolist(), strict=True)
    ]
    # Counts are whole workers and whole replicas on the type that the job keeps to.
    step = np.lcm(jobs.gpus_per_worker * each, np.array(replicas, dtype=np.int64))
    least = -(-jobs.min_gpus * each // step) * step
    most = np.minimum(jobs.max_gpus * each, within[kind])
    batches = batches_of(jobs.evidence, tables, jobs.gpus, kind, len(gpus.node))
    least_limit = batches.least_limit(least)
    return Participants(
        gpus=gpus,
        stays=stays,
        runs=(home >= 0) & (jobs.held_gpus > 0),
        home=home,
        possible=possible,
        least=least,
        most=most,
        step=step,
        batches=batches,
        least_limit=least_limit,
        most_limit=np.maximum(batches.most_limit(most), least_limit),
    )


def problem_of(
    snapshot: Snapshot, participants: Participants, limit_before: IntArray, limit: IntArray
) -> ProblemInstance:
    """What every count of GPUs is worth to every job at the limits of their batches."""
    counts = np.arange(len(participants.gpus.node) + 1)
    batches, plays = participants.batches, (participants.home >= 0)[:, None]
    least, step = participants.least[:, None], participants.step[:, None]
    total = batches.total(limit, counts)
    fixed = batches.fixed[:, None]

    # Genes of the paper are local batches that sum to at most the limit, and growth keeps the local batch.
    useful = np.where(batches.fixed, participants.most, -(-limit // batches.max_local))
    most = np.maximum(np.minimum(participants.most, useful), participants.least)[:, None]
    fit = np.minimum(counts, most) // step * step
    fit = np.where(plays & (fit >= least), fit, 0)

    before = np.maximum(batches.total(limit_before, counts), 1)
    left = np.maximum(limit[:, None] * counts // before, np.minimum(counts, 1))
    kept = np.where(fixed | (limit[:, None] >= before), counts, left)
    start = np.where(batches.fixed, batches.start, -(-limit // batches.max_local))
    start = np.maximum(start, participants.least)
    more = np.maximum(counts, limit[:, None] * counts // np.maximum(total, 1))
    grown = np.where(counts == 0, start[:, None], np.where(fixed, counts, more))
    return ProblemInstance(
        segment=participants.gpus.kind,
        node=participants.gpus.node,
        per_node=snapshot.cluster.gpus_per_node,
        home=participants.home,
        cost=batches.cost(total, counts),
        fit=fit,
        kept=kept,
        grown=np.where(plays, grown, 0),
        least=participants.least,
        executed_s=snapshot.jobs.progress.executed_s,
    )


def _homes(snapshot: Snapshot, fits: BoolArray, free: IntArray) -> IntArray:
    """(jobs,) what a job holds, else the type with fewest jobs for its GPUs, in turn; -1 where none fits."""
    jobs = snapshot.jobs
    stays_on = (jobs.held_kind >= 0) & fits[np.arange(len(jobs)), jobs.held_kind]
    home = np.where(stays_on, jobs.held_kind, -1)
    if fits.shape[1] == 1:
        return np.where(fits[:, 0], 0, home)
    load = np.bincount(home[stays_on], minlength=len(free)).astype(np.float64)
    for row in np.flatnonzero(~stays_on & fits.any(axis=1)).tolist():
        home[row] = int(np.where(fits[row], load / np.maximum(free, 1), np.inf).argmin())
        load[home[row]] += 1
    return home
