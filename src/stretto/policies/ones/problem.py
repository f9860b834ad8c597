"""Which jobs take part in the evolution, on which GPUs, and what every count of GPUs is worth to each."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.optimize import linear_sum_assignment

from stretto.estimate import fit_many, iteration_s
from stretto.model import (
    Allocation,
    BoolArray,
    Evidence,
    FloatArray,
    IntArray,
    MeasuredSpeeds,
    Observations,
    Pinned,
    Snapshot,
    TrainingLimits,
)
from stretto.policies.common.admission import most_gpus_of_one_job
from stretto.policies.common.speed_curves import unstoppable
from stretto.policies.ones.evolution import IDLE, ProblemInstance

UNIT = np.ones(7)  # stands for a throughput model where there is none
Column = tuple[int, int, int, bool, int, Observations | tuple[()], float]
SLOTS = 64  # more GPUs than one node can have


@dataclass(frozen=True, eq=False)
class Batches:
    """What is known of the jobs that take part, on the type to which each keeps; columns are (jobs,)."""

    init: IntArray  # samples in all that its owner tuned for
    largest: IntArray  # samples in all that may be considered
    max_local: IntArray  # samples that fit on a GPU
    fixed: BoolArray  # the batch is `init` on any count
    start: IntArray  # GPUs on which a job with a fixed batch starts
    params: FloatArray  # (jobs, 7) throughput models
    modelled: BoolArray  # whether there is one
    single_per_s: FloatArray  # samples/s on one GPU
    table: FloatArray  # (jobs, gpus + 1) speeds of jobs of which only a table is known; NaN: the others

    def total(self, limit: IntArray, gpus: IntArray) -> IntArray:
        """(jobs, gpus + 1) B, samples in all on every count, at least one on each GPU."""
        most = np.minimum(limit[:, None], gpus * self.max_local[:, None])
        return np.where(self.fixed[:, None], self.init[:, None], np.maximum(most, gpus))

    def cost(self, total: IntArray, gpus: IntArray) -> FloatArray:
        """(jobs, 2, gpus + 1) φ = c/X, GPU-seconds a sample, on one node and on several; 0 at 0 GPUs."""
        count = np.maximum(gpus, 1)
        local = total / count
        passes = np.ceil(local / np.maximum(self.max_local[:, None], 1))
        params = self.params[:, None]
        alone = total / (self.single_per_s[:, None] * count)
        cost = np.zeros((len(self.init), 2, len(gpus)))
        for spread in (0, 1):
            step = iteration_s(params, 1 + spread, count, local / np.maximum(passes, 1), passes - 1)
            seconds = np.where(self.modelled[:, None], step, alone)
            seconds = np.where(np.isnan(self.table), seconds, total / self.table)
            cost[:, spread] = np.where(gpus > 0, gpus * seconds / np.maximum(total, 1), 0.0)
        return cost

    def least_limit(self, least_gpus: IntArray) -> IntArray:
        """The limit of a job that starts: what fits on one GPU, or on the fewest that it may hold."""
        fits = np.minimum(self.init, least_gpus * self.max_local)
        return np.where(self.fixed, self.init, np.maximum(fits, least_gpus))

    def most_limit(self, gpus: IntArray) -> IntArray:
        """What fits on all `gpus` (jobs,) of its type, within what its owner allows."""
        return np.where(self.fixed, self.init, np.minimum(gpus * self.max_local, self.largest))


@dataclass(frozen=True, eq=False)
class Gpus:
    """The GPUs that may change hands: the columns of a genome. Types, and nodes, stand together."""

    kind: IntArray  # (gpus,)
    node: IntArray  # (gpus,)
    slot: IntArray  # (gpus,) which of its node

    @property
    def place(self) -> IntArray:
        """(gpus,) a number that stays with a GPU when others come and go."""
        return self.node * SLOTS + self.slot

    @cached_property
    def column(self) -> dict[int, int]:
        """The column of a place."""
        return {place: column for column, place in enumerate(self.place.tolist())}


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


def participants_of(snapshot: Snapshot, from_submitted: bool = True) -> Participants:
    """All jobs but the unstoppable, on usable GPUs that no unstoppable job holds.

    from_submitted: the submitted batch is the one to start from, else the smallest that evidence allows.
    """
    jobs, cluster = snapshot.jobs, snapshot.cluster
    stays = unstoppable(jobs)
    gpus = gpus_beside(snapshot, stays)
    free = np.bincount(gpus.kind, minlength=len(cluster.types))
    # Tables are read only where some job has reported nothing: reading them needs the view.
    tables: Sequence[MeasuredSpeeds | None] = [None] * len(jobs)
    if any(evidence is None for evidence in jobs.evidence):
        tables = jobs.tables
    runs_there = [runs_on(evidence, table) for evidence, table in zip(jobs.evidence, tables, strict=True)]
    possible = jobs.allowed_kinds & np.array(runs_there, dtype=np.bool_).reshape(jobs.allowed_kinds.shape)
    fewest = jobs.min_gpus[:, None] * cluster.stand_ins
    within = np.minimum(free, most_gpus_of_one_job(cluster))
    home = _homes(snapshot, possible & (fewest <= within) & ~stays[:, None], free)

    kind = np.maximum(home, 0)
    each = cluster.stand_ins[kind]
    replicas = [
        1 if evidence is None else int(evidence.limits.replica_gpus[index])
        for evidence, index in zip(jobs.evidence, kind.tolist(), strict=True)
    ]
    # Counts are whole workers and whole replicas on the type that the job keeps to.
    step = np.lcm(jobs.gpus_per_worker * each, np.array(replicas, dtype=np.int64))
    least = -(-jobs.min_gpus * each // step) * step
    most = np.minimum(jobs.max_gpus * each, within[kind])
    submitted = jobs.batch_size if from_submitted else np.zeros_like(jobs.gpus)
    batches = batches_of(jobs.evidence, tables, jobs.gpus, kind, submitted, len(gpus.node))
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
    allowed = np.where(fixed | (limit[:, None] >= before), counts, left)
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
        kept=allowed,
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


# How fast would each job run on every count, and which counts may it have? Columns for `evolution`.
#
# X_j(B, c) of ONES (SC 2021), equation 5, for the batch that goes with a count: B = min(R, c b), with R the
# limit of the job and b the samples that fit on a GPU. Predicted by the throughput model fitted to what the
# job has shown; before that, as c GPUs of the profiled one.


def batches_of(
    evidence: Sequence[Evidence | None],
    tables: Sequence[MeasuredSpeeds | None],
    asked_gpus: IntArray,
    home: IntArray,
    submitted: IntArray,
    most_gpus: int,
) -> Batches:
    """The columns of these jobs; a job without evidence has its table measured in what it was asked for.

    submitted: (jobs,) batches to start from; 0: the smallest that the evidence allows.
    """
    columns = [
        _from_evidence(job_evidence, kind, gpus, batch)
        if job_evidence is not None
        else (gpus, gpus, 1, True, gpus, (), 1.0)
        for job_evidence, kind, gpus, batch in zip(
            evidence, home.tolist(), asked_gpus.tolist(), submitted.tolist(), strict=True
        )
    ]
    init, largest, high, fixed, start, observed_of, single = (
        list(column) for column in (zip(*columns, strict=True) if columns else [()] * 7)
    )
    # All models are fitted in one call, which is faster than one after the other.
    observations_there = [observed for observed in observed_of if observed]
    models = iter(fit_many(observations_there))
    table = np.full((len(columns), most_gpus + 1), np.nan)
    for row, job_evidence in enumerate(evidence):
        if job_evidence is None:
            table[row] = _looked_up(tables[row], int(home[row]), int(asked_gpus[row]), most_gpus)
    return Batches(
        init=np.array(init, dtype=np.int64),
        largest=np.array(largest, dtype=np.int64),
        max_local=np.array(high, dtype=np.int64),
        fixed=np.array(fixed, dtype=np.bool_),
        start=np.array(start, dtype=np.int64),
        params=np.array(
            [next(models) if observations else UNIT for observations in observed_of], dtype=np.float64
        ).reshape(-1, 7),
        modelled=np.array([bool(observations) for observations in observed_of], dtype=np.bool_),
        single_per_s=np.array(single, dtype=np.float64),
        table=table,
    )


def runs_on(one: Evidence | None, table: MeasuredSpeeds | None) -> BoolArray:
    """(types,) whether a job can run there."""
    if one is not None:
        return np.asarray(one.limits.max_local > 0)
    assert table is not None
    return np.asarray(np.isfinite(table.per_s).any(axis=1))


def _from_evidence(evidence: Evidence, kind: int, gpus: int, submitted: int) -> Column:
    limits, replica = evidence.limits, int(evidence.limits.replica_gpus[kind])
    high = max(int(limits.max_local[kind]), 1)
    batch = evidence.fixed_batch or min(submitted or limits.init_batch, limits.max_batch)
    fixed = evidence.fixed_batch > 0 or replica > 1
    start = -(-batch // high) * replica
    return (
        batch,
        max(limits.max_batch, batch),
        high,
        fixed,
        min(start, gpus) if fixed else start,
        evidence.observed[kind] if replica == 1 else (),
        _single(limits, kind) / replica,
    )


def _single(limits: TrainingLimits, kind: int) -> float:
    """Samples per second of one replica; types alike where nothing was profiled."""
    per_s = float(limits.single_per_s[kind])
    return per_s if per_s > 0 else 1.0


def _looked_up(table: MeasuredSpeeds | None, kind: int, gpus: int, most_gpus: int) -> FloatArray:
    """(gpus + 1,) speeds relative to one GPU of what was asked for; infinitely slow where it cannot run."""
    assert table is not None, "a job without evidence has a table"
    speeds = np.full(most_gpus + 1, 1e-9)
    width = min(most_gpus + 1, table.per_s.shape[1])
    per_s = table.per_s[kind, :width]
    speeds[:width] = np.where(per_s > 0, per_s, 1e-9)
    reference = table.per_s[kind, gpus] if gpus < table.per_s.shape[1] else np.nan
    return np.asarray(speeds * gpus / reference if reference > 0 else speeds)


# From genomes to named GPUs and back, moving as little as can be.


def gpus_beside(snapshot: Snapshot, stays: BoolArray) -> Gpus:
    """The GPUs of usable nodes that none of the jobs that stay holds."""
    cluster = snapshot.cluster
    masks = np.zeros(len(cluster.nodes), dtype=np.int64)
    for row in np.flatnonzero(stays).tolist():
        allocation = snapshot.placement[snapshot.jobs[row].id]
        masks[list(allocation.nodes)] |= allocation.masks
    order = np.argsort(cluster.kind, kind="stable")
    node = np.repeat(order, np.where(snapshot.usable, cluster.node_gpus, 0)[order])
    starts = np.flatnonzero(np.diff(node, prepend=-1))
    slot = np.arange(len(node)) - np.repeat(starts, np.diff(np.append(starts, len(node))))
    free = (masks[node] >> slot) & 1 == 0
    node, slot = node[free], slot[free]
    return Gpus(cluster.kind[node], node, slot)


def genome_of(gpus: Gpus, placement: dict[int, Allocation]) -> IntArray:
    """(1, gpus) which job holds each, by the rows given; GPUs that may not be used are left out."""
    genome = np.full((1, len(gpus.node)), IDLE, dtype=np.int64)
    for row, allocation in placement.items():
        for node, mask in zip(allocation.nodes, allocation.masks, strict=True):
            for slot in range(mask.bit_length()):
                column = gpus.column.get(node * SLOTS + slot) if mask >> slot & 1 else None
                if column is not None:
                    genome[0, column] = row
    return genome


def settle_on_nodes(gpus: Gpus, genome: IntArray, current: IntArray, jobs: int) -> IntArray:
    """(gpus,) a schedule on other nodes of the same sizes, so that as many GPUs as can be keep their job.

    An assignment problem: what the schedule says of a node goes to the node where most of it is already.
    On a node, jobs keep their own GPUs first.
    """
    nodes, first, sizes = np.unique(gpus.node, return_index=True, return_counts=True)
    # Count the GPUs of each job on each node, in the schedule and now; column 0 is IDLE and is cut off.
    inside = np.searchsorted(nodes, gpus.node) * (jobs + 1)
    shape = (len(nodes), jobs + 1)
    size = len(nodes) * (jobs + 1)
    new = np.bincount(inside + genome + 1, minlength=size).reshape(shape)[:, 1:]
    old = np.bincount(inside + current + 1, minlength=size).reshape(shape)[:, 1:]
    there = np.full(len(genome), IDLE, dtype=np.int64)
    alike = np.stack([gpus.kind[first], sizes], axis=1)
    for group in np.unique(alike, axis=0):
        among = np.flatnonzero((alike == group).all(axis=1))
        # What stays if node i of the schedule becomes node j: of each job the smaller of both counts.
        stays = np.minimum(new[among][:, None], old[among][None]).sum(axis=2)
        for source, target in zip(*linear_sum_assignment(stays, maximize=True), strict=True):
            columns = slice(first[among[target]], first[among[target]] + int(group[1]))
            there[columns] = _on_node(new[among[source]], current[columns])
    return there


def _on_node(counts: IntArray, current: IntArray) -> IntArray:
    """(gpus of a node,) so many GPUs to each job, its own ones first."""
    left = counts.copy()
    there = np.full(len(current), IDLE, dtype=np.int64)
    for place, job in enumerate(current.tolist()):
        if job != IDLE and left[job] > 0:
            there[place] = job
            left[job] -= 1
    rest = np.repeat(np.arange(len(left)), left)
    there[np.flatnonzero(there == IDLE)[: len(rest)]] = rest
    return there


def within_nodes(gpus: Gpus, genome: IntArray, job: int, most_nodes: int) -> None:
    """Take the GPUs of a job on nodes beyond so many away, in place: those where it has fewest go first."""
    mine = genome == job
    nodes, counts = np.unique(gpus.node[mine], return_counts=True)
    lost = nodes[np.lexsort((nodes, -counts))][most_nodes:]
    genome[mine & np.isin(gpus.node, lost)] = IDLE


def pin_of(gpus: Gpus, columns: IntArray, batch: int) -> Pinned:
    """Exactly these GPUs, with a total batch split evenly, the rest on the first; 0: none is chosen."""
    columns = columns[np.lexsort((gpus.slot[columns], gpus.node[columns]))]
    nodes = np.unique(gpus.node[columns])
    masks = [int((1 << gpus.slot[columns[gpus.node[columns] == node]]).sum()) for node in nodes]
    each, rest = divmod(batch, len(columns))
    local = (each + 1,) * rest + (each,) * (len(columns) - rest) if batch else ()
    return Pinned(tuple(nodes.tolist()), tuple(mask.bit_count() for mask in masks), tuple(masks), local)
