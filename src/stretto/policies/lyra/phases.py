"""Lyra's two phases (section 5.2): launch base demands by running time, then share out what is left."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from stretto.model import BoolArray, FloatArray, IntArray, Reasons, Snapshot, Why
from stretto.policies.common.admission import AskedAndFree, most_gpus_of_one_job
from stretto.policies.lyra.placement import Draft
from stretto.solve import MultipleChoiceKnapsack, assign

MOST_ITEMS = 32  # items of one job; chosen: a wider range goes in larger steps
MOST_PASSES = 3  # times that what could not be placed is shared out once more; chosen

Pools = tuple[int, ...]  # GPU types, best first
SecondsSaved = Callable[[IntArray, IntArray], FloatArray]  # rows (rows,), more workers of each (rows, items)


@dataclass(frozen=True, eq=False)
class Demand:
    """What Lyra makes of every job; columns are (jobs,), GPUs in those asked for."""

    base_gpus: IntArray  # without which it does not run
    most_gpus: IntArray
    each: IntArray  # GPUs of a worker
    turn: FloatArray  # seconds, shorter is launched sooner
    work_gpu_s: FloatArray  # what is left, in seconds of one GPU
    elastic: BoolArray  # has flexible demand, and its workers may come and go
    mixes: BoolArray  # may hold several types at once; comes after all others
    allowed: BoolArray  # (jobs, types)

    @property
    def most_items(self) -> IntArray:
        """(jobs,) workers beyond the base."""
        return np.where(self.elastic, (self.most_gpus - self.base_gpus) // self.each, 0)


@dataclass(frozen=True, eq=False)
class Pooling:
    """Which types a job tries first."""

    lent: BoolArray  # (types,) on loan from others
    elastic_first: Pools  # for elastic jobs
    inelastic_first: Pools  # for all others, as far as they may run on either
    own_first: Pools  # for base workers of jobs that mix types

    def of(self, demand: Demand, row: int) -> Pools:
        """The types in the order in which one job tries them."""
        if demand.mixes[row]:
            return self.own_first
        return self.elastic_first if demand.elastic[row] else self.inelastic_first


def pooling(snapshot: Snapshot, special: bool, fungible_on_lent: bool = False) -> Pooling:
    """Types by preference, larger first; without `special` placement elastic jobs are like all others.

    fungible_on_lent: jobs of one size that may run on either sort try lent types first, too.
    """
    cluster = snapshot.cluster
    lent = np.zeros(len(cluster.types), dtype=np.bool_)
    for lender in snapshot.lenders:
        lent[cluster.kind[lender.nodes]] = True
    kinds = np.arange(len(lent))
    own_first = tuple(np.lexsort((kinds, -snapshot.capacity, lent)).tolist())
    lent_first = tuple(np.lexsort((kinds, -snapshot.capacity, ~lent)).tolist())
    inelastic_first = lent_first if fungible_on_lent else own_first
    return Pooling(lent, lent_first if special else inelastic_first, inelastic_first, own_first)


def launch(draft: Draft, demand: Demand, pools: Pooling, waiting: IntArray) -> None:
    """Phase 1: base demands of waiting jobs by running time, skipping what does not fit (SJF).

    A job that fits by number and not by place counts as not fitting. The others are tried with what that
    leaves, a few times. Loops run over jobs for which there is room when their turn comes.
    """
    order = waiting[np.lexsort((demand.base_gpus[waiting], demand.turn[waiting], demand.mixes[waiting]))]
    for _ in range(MOST_PASSES):
        chosen = _served(draft, demand, pools, order)
        failed = False
        for row, workers in sorted(chosen.items(), key=lambda item: -int(demand.each[item[0]])):
            failed = not draft.put_base(row, workers) or failed
        order = order[[row not in chosen for row in order.tolist()]]
        if not failed:
            return


def _served(draft: Draft, demand: Demand, pools: Pooling, order: IntArray) -> dict[int, dict[int, int]]:
    """Workers by type of every job that fits by number, in the order in which they are served."""
    cluster = draft.cluster
    stand_ins = cluster.stand_ins
    kinds = range(len(stand_ins))
    left = np.array([draft.room(kind) for kind in kinds])
    need = demand.base_gpus[order, None] * stand_ins
    fits = demand.allowed[order] & (need <= np.minimum(left, most_gpus_of_one_job(cluster)))
    for each in np.unique(demand.each[order]).tolist():
        same = demand.each[order] == each
        fits[same] &= need[same] <= np.array([draft.slots(kind, each) * each for kind in kinds])
    # Jobs that mix types need not fit on any single one.
    mixes = demand.mixes[order]
    together = (demand.allowed[order] * (left // stand_ins)).sum(axis=1)
    considered = np.flatnonzero(fits.any(axis=1) | (mixes & (demand.base_gpus[order] <= together)))
    if not considered.size:
        return {}
    # One walk in the order of SJF. It ends early once not even the smallest demand is left for.
    smallest = int(need[considered].min())
    remaining = left.tolist()
    served: dict[int, dict[int, int]] = {}
    for place in considered.tolist():
        row = int(order[place])
        own, each = need[place].tolist(), int(demand.each[row])
        for kind in pools.of(demand, row):
            if fits[place, kind] and own[kind] <= remaining[kind]:
                served[row] = {kind: own[kind] // each}
                remaining[kind] -= own[kind]
                break
        else:
            if mixes[place] and own[0] // stand_ins[0] <= sum(remaining):
                split = _split(draft, demand, pools, row, remaining)
                if split:
                    served[row] = split
                    for kind, workers in split.items():
                        remaining[kind] -= workers * each
        if sum(remaining) < smallest:
            break
    return served


def _split(draft: Draft, demand: Demand, pools: Pooling, row: int, remaining: list[int]) -> dict[int, int]:
    """Workers by type for a job that mixes types: own types as far as they go; none where all do not do."""
    each, missing = int(demand.each[row]), int(demand.base_gpus[row] // demand.each[row])
    split = {}
    for kind in pools.own_first:
        if demand.allowed[row, kind] and missing:
            stand_ins = int(draft.cluster.stand_ins[kind])
            there = min(remaining[kind] // each, draft.slots(kind, each)) // stand_ins
            if there:
                split[kind] = min(there, missing) * stand_ins
                missing -= min(there, missing)
    return split if not missing else {}


def scale(
    draft: Draft, demand: Demand, pools: Pooling, running: IntArray, saved: SecondsSaved | None
) -> None:
    """Phase 2: extra workers of elastic jobs for the largest reduction of completion times.

    running: rows of the jobs that run or have been launched, elastic ones; saved: what more workers save,
    where not by linear speed. One knapsack for each type, for the jobs whose base is there; then one for
    jobs that mix types, lent GPUs first. What cannot be placed is shared out again, a few times.
    """
    cluster = draft.cluster
    holds = _holdings(draft, demand, running)
    single = running[~demand.mixes[running]]
    base_kind = _kinds_of_bases(draft)[single]
    for kind in range(len(cluster.types)):
        _scale_on(draft, demand, single[base_kind == kind], (kind,), holds, saved)
    mixing = running[demand.mixes[running]]
    lent_first = tuple(sorted(pools.own_first, key=lambda kind: not pools.lent[kind]))
    if mixing.size:
        _scale_on(draft, demand, mixing, lent_first, holds, saved)


def _kinds_of_bases(draft: Draft) -> IntArray:
    """(jobs,) the type on which each job's base workers are, the first of several; -1 none."""
    kinds = draft.snapshot.jobs.held_kind.copy()
    for row, counts in draft.base.items():
        kinds[row] = draft.cluster.kind[next(iter(counts))] if counts else -1
    return kinds


def _holdings(draft: Draft, demand: Demand, running: IntArray) -> IntArray:
    """(jobs, types) GPUs of flexible workers in the snapshot, as far as they have not been taken back."""
    cluster, jobs = draft.cluster, draft.snapshot.jobs
    holds = draft.flexible.by_row_and_kind(cluster.kind, len(jobs), len(cluster.types))
    for row in draft.base:
        holds[row] = [draft.extra_gpus(row, kind) for kind in range(len(cluster.types))]
    return holds


def _scale_on(
    draft: Draft, demand: Demand, rows: IntArray, kinds: Pools, holds: IntArray, saved: SecondsSaved | None
) -> None:
    """One knapsack. rows: its groups; kinds: where their flexible workers may be, best first."""
    stand_ins = draft.cluster.stand_ins
    limit = demand.most_items[rows]
    rows, limit = rows[limit > 0], limit[limit > 0]
    # Number first, place second: a job that cannot place its share takes part again with what it could.
    for _ in range(MOST_PASSES):
        if not rows.size:
            return
        step = -(-limit // MOST_ITEMS)
        # Capacity: idle GPUs, and those that these jobs' own flexible workers would free.
        own = holds[rows].sum(axis=0)
        capacity = sum(
            (draft.idle_for_flexible(kind) + int(own[kind])) // int(stand_ins[kind]) for kind in kinds
        )
        value = _values(demand, rows, limit, step, saved)
        target = most_saved(value, demand.each[rows] * step, capacity) * step
        reached = _settle(draft, demand, rows, target, kinds, holds)
        if (reached >= target).all():
            return
        limit = np.where(reached < target, reached, limit)
        rows, limit = rows[limit > 0], limit[limit > 0]


def most_saved(value: FloatArray, each: IntArray, capacity: int) -> IntArray:
    """(groups,) workers beyond the base of each elastic job, for the largest sum of seconds saved.

    A multiple-choice knapsack (section 5.2). A group is an elastic job, an item so many more workers, the
    capacity the GPUs that are left. Equal sums go to the fewest GPUs. value: (groups, items) of 1, 2, … more
    workers, -inf where there is no such item; each: (groups,) GPUs of a worker.
    """
    if value.size == 0 or capacity <= 0:
        return np.zeros(len(value), dtype=np.int64)
    items = value.shape[1]
    gpus = np.arange(1, items + 1) * each[:, None]
    one_kind = np.zeros(items, dtype=np.int64)  # each knapsack has GPUs of one capacity
    problem = MultipleChoiceKnapsack(value, np.isfinite(value), gpus, one_kind, np.array([capacity]))
    chosen = assign(problem)
    return chosen.column + 1  # -1: nothing of the group goes in


def reductions_s(work_s: FloatArray, least: IntArray, most: IntArray) -> FloatArray:
    """(groups, items) seconds that k more workers save: W / w_min - W / (w_min + k), k = 1, 2, ….

    work_s: (groups,) what is left, in seconds of one worker; least, most: (groups,) workers. -inf where
    a group has no such item. Speed is linear in workers within the range (Lyra, section 5).
    """
    more = np.arange(1, max(int((most - least).max(initial=0)), 0) + 1)
    saved_s = work_s[:, None] / least[:, None] - work_s[:, None] / (least[:, None] + more)
    return np.where(more <= (most - least)[:, None], saved_s, -np.inf)


def _values(
    demand: Demand, rows: IntArray, limit: IntArray, step: IntArray, saved: SecondsSaved | None
) -> FloatArray:
    """(rows, items) seconds that `step`, `2 step`, … more workers save."""
    count = int((limit // step).max())
    more = np.arange(1, count + 1) * step[:, None]
    if saved is not None:
        return np.where(more <= limit[:, None], saved(rows, np.minimum(more, limit[:, None])), -np.inf)
    least = demand.base_gpus[rows] // demand.each[rows]
    work_s = demand.work_gpu_s[rows] / demand.each[rows]
    if (step == 1).all():
        return reductions_s(work_s, least, least + limit)
    saved_s = work_s[:, None] / least[:, None] - work_s[:, None] / (least[:, None] + more)
    return np.where(more <= limit[:, None], saved_s, -np.inf)


def _settle(
    draft: Draft, demand: Demand, rows: IntArray, target: IntArray, kinds: Pools, holds: IntArray
) -> IntArray:
    """Shrink, then grow, jobs to so many more workers: (rows,) how many they come to have.

    Larger workers are placed first. A job keeps what it has where that is its target.
    """
    stand_ins = draft.cluster.stand_ins
    columns = np.array(kinds, dtype=np.int64)
    unit = demand.each[rows, None] * stand_ins[columns]
    have = holds[rows[:, None], columns]
    whole = have // unit
    # Shrink first, from the least preferred type on; a part of a worker that is left over goes as well.
    surplus = np.maximum(whole.sum(axis=1) - target, 0)
    for place in np.flatnonzero((surplus > 0) | (have % unit).any(axis=1)).tolist():
        row, excess = int(rows[place]), int(surplus[place])
        for column in reversed(range(len(kinds))):
            fewer = min(excess, int(whole[place, column]))
            excess -= fewer
            gpus = fewer * int(unit[place, column]) + int(have[place, column] % unit[place, column])
            draft.drop_flexible(row, kinds[column], gpus)
            holds[row, kinds[column]] -= gpus
            whole[place, column] -= fewer
    reached: IntArray = whole.sum(axis=1)
    # Then grow, larger workers first: they are the hardest to place (best-fit decreasing, section 5.3).
    growing = np.flatnonzero(reached < target)
    for place in growing[(-demand.each[rows[growing]]).argsort(kind="stable")].tolist():
        row = int(rows[place])
        for column, kind in enumerate(kinds):
            if not demand.allowed[row, kind]:
                continue
            size = int(unit[place, column])
            added = draft.add_flexible(row, kind, int(target[place] - reached[place]) * size)
            holds[row, kind] += added
            reached[place] += added // size
    return reached


def reasons(draft: Draft, demand: Demand, gpus: IntArray) -> Reasons:
    """Why each job without GPUs waits, by what its base demand would need."""
    cluster = draft.cluster
    most = most_gpus_of_one_job(cluster)
    need = demand.base_gpus[:, None] * cluster.stand_ins
    left = np.array([draft.room(kind) for kind in range(len(cluster.types))])
    code = np.where((demand.allowed & (need <= left)).any(axis=1), int(Why.FRAGMENTED), int(Why.NO_FREE_GPUS))
    never = ~(demand.allowed & (need <= most)).any(axis=1)
    together = (demand.allowed * (most // cluster.stand_ins)).sum(axis=1)
    code[never & ~(demand.mixes & (demand.base_gpus <= together))] = int(Why.TOO_LARGE)
    code[~demand.allowed.any(axis=1)] = int(Why.NO_SUCH_TYPE)
    code[gpus > 0] = int(Why.RUNS)
    return Reasons(code, AskedAndFree(code, demand.base_gpus, left, most, cluster.type_names))
