"""When does each chosen job run its leases? As late as its deadline allows, so that others can run now.

UniSched's ILP (TPDS 2024, section III-C4) pays for deadlines that are met. It pays a hundredth of that for
best-effort jobs that run in the current lease. Its optimum therefore meets the deadlines. Of all ways to do
so, it leaves most of the current lease to best-effort jobs: leases of jobs with deadlines go to the end.
"""

from dataclasses import dataclass

import numpy as np

from stretto.model import BoolArray, IntArray, frozen
from stretto.policies.unisched.ilp import Chosen, Options, choose_options, must_by

SINGLE_LEASES = 12  # planned one by one; what lies beyond, in stretches that grow; chosen
GROWTH = 1.25  # of those stretches; chosen: 30 of them reach two weeks in leases of 10 minutes


@dataclass(frozen=True, eq=False)
class LeasePlan:
    """Which options are taken and which of them must run in the lease that begins now."""

    taken: BoolArray  # (options,)
    now: BoolArray  # (options,) subset of `taken`: cannot wait for the next lease
    value: float
    bound: float  # no plan is worth more
    solved: bool  # False: none had to be left out, so no programme was needed

    @property
    def gap(self) -> float:
        """How far the value may be from the best, relative to the latter; 0: proved optimal."""
        return max(self.bound - self.value, 0.0) / self.bound if self.bound > 0 else 0.0


def plan_leases(options: Options, capacity_gpus: int, most_nodes: int) -> LeasePlan:
    """The options that are worth most together, and which of them run now.

    options: of each job in order of preference. First every job's first option is laid out: where that
    works nothing can be better. Otherwise the programme decides, with at most `most_nodes` nodes of branch
    and bound, or if its solver gives up, value per GPU-lease. What was chosen is laid out, and what finds no
    leases is left out.
    """
    if not len(options):
        return LeasePlan(_none(0), _none(0), 0.0, 0.0, False)
    ends = stretches(int(options.window.max()))
    # Where all deadlines can be met no ILP is needed: each job has its first option.
    best = best_options(options)
    bound = float(options.value[best].sum())
    now, missed = lay_out(options.of(best), capacity_gpus, ends)
    if not missed.any():
        return _plan(options, best, now, bound, solved=False)
    # The ILP counts GPUs of all cells together, so its choice may still not fit; such jobs are left out.
    chosen = _choose(options, capacity_gpus, ends, most_nodes)
    now, missed = lay_out(options.of(chosen.taken), capacity_gpus, ends)
    laid_out = chosen.taken.copy()
    laid_out[np.flatnonzero(chosen.taken)[missed]] = False
    return _plan(options, laid_out, now[~missed], min(bound, chosen.bound), solved=True)


def plan_in_order(options: Options, capacity_gpus: int) -> LeasePlan:
    """The first option of each job, in the order of jobs, while there is room; worth is not looked at."""
    if not len(options):
        return LeasePlan(_none(0), _none(0), 0.0, 0.0, False)
    ends = stretches(int(options.window.max()))
    chosen = _fill(options, capacity_gpus, ends, np.arange(len(options)))
    now, missed = lay_out(options.of(chosen), capacity_gpus, ends)
    chosen[np.flatnonzero(chosen)[missed]] = False
    return _plan(options, chosen, now[~missed], float(options.value[best_options(options)].sum()), False)


def stretches(last: int) -> IntArray:
    """Where stretches of leases begin, and where the last one ends: single leases first, then longer ones."""
    ends = list(range(min(last, SINGLE_LEASES) + 1))
    while ends[-1] < last:
        ends.append(min(last, max(ends[-1] + 1, int(ends[-1] * GROWTH))))
    return frozen(np.array(ends, dtype=np.int64))


def best_options(options: Options) -> BoolArray:
    """(options,) the first of each job."""
    first = np.ones(len(options), dtype=np.bool_)
    first[1:] = options.job[1:] != options.job[:-1]
    return first


def lay_out(options: Options, capacity_gpus: int, ends: IntArray) -> tuple[BoolArray, BoolArray]:
    """(options,) which must run in lease 0, and which find too few leases, when everything is put off.

    One option a job. From the last stretch to the first, those with most leases left before them go first:
    for jobs of one GPU no order does better. In a stretch of several leases jobs may take parts, as if
    leases there could be cut at will.
    """
    left = options.leases.copy()
    # Backwards, so that leases end up as late as they can: stretches from the last to the second.
    by_size = np.argsort(-options.gpus, kind="stable")
    for begin, end in zip(ends[-2:0:-1].tolist(), ends[:1:-1].tolist(), strict=True):
        active = by_size[(options.window[by_size] > begin) & (left[by_size] > 0)]
        active = active[np.argsort(-left[active], kind="stable")]
        usable = np.minimum(np.minimum(options.window[active], end) - begin, left[active])
        left[active] -= _shared_out(usable, options.gpus[active], capacity_gpus * (end - begin))
    # What is left has to run in lease 0, where there is room for one lease of each job at most.
    missed = left > 1
    last = np.flatnonzero(left == 1)
    density = options.value[last] / (options.gpus[last] * options.leases[last])
    last = last[np.argsort(-density, kind="stable")]
    fits = first_fit(options.gpus[last], capacity_gpus)
    missed[last[~fits]] = True
    now = _none(len(left))
    now[last[fits]] = True
    return now, missed


def first_fit(gpus: IntArray, room: int) -> BoolArray:
    """(rows,) which are served when rows take their GPUs in order and what does not fit is skipped."""
    return _shared_out(np.ones(len(gpus), dtype=np.int64), gpus, room) > 0


def _choose(options: Options, capacity_gpus: int, ends: IntArray, most_nodes: int) -> Chosen:
    capacity = np.full(int(ends[-1]), capacity_gpus, dtype=np.int64)
    found = choose_options(options, capacity, ends[1:], most_nodes)
    if found is not None:
        return found
    density = options.value / (options.gpus * options.leases)
    taken = _fill(options, capacity_gpus, ends, np.argsort(-density, kind="stable"))
    return Chosen(taken, float(options.value[taken].sum()), np.inf)


def _fill(options: Options, capacity_gpus: int, ends: IntArray, order: IntArray) -> BoolArray:
    """(options,) those taken when options are walked in order: one a job, while every prefix has room."""
    load = must_by(options, ends[1:])
    room = (ends[1:] * capacity_gpus).astype(np.float64)
    chosen, served = _none(len(options)), set[int]()
    for index in order.tolist():
        job = int(options.job[index])
        if job not in served and (load[:, index] <= room).all():
            room -= load[:, index]
            chosen[index] = True
            served.add(job)
    return chosen


def _plan(options: Options, taken: BoolArray, now: BoolArray, bound: float, solved: bool) -> LeasePlan:
    runs = _none(len(options))
    runs[np.flatnonzero(taken)[now]] = True
    return LeasePlan(frozen(taken), frozen(runs), float(options.value[taken].sum()), bound, solved)


def _shared_out(leases: IntArray, gpus: IntArray, room: int) -> IntArray:
    """(rows,) leases given of those wanted, in order, while the GPU-leases last; what does not fit is cut.

    All up to the first that does not fit are served at once. That one gets the part that fits, and the walk
    goes on behind it among those of which a lease still fits.
    """
    granted = np.zeros(len(leases), dtype=np.int64)
    need = gpus * leases
    waiting = np.arange(len(leases))
    while waiting.size:
        # One step for all rows up to the first that does not fit, not one for each row.
        total = need[waiting].cumsum()
        count = int(np.searchsorted(total, room, side="right"))
        served = waiting[:count]
        granted[served] = leases[served]
        room -= int(total[count - 1]) if count else 0
        if count == len(waiting):
            break
        cut = waiting[count]
        granted[cut] = room // int(gpus[cut])
        room -= int(granted[cut] * gpus[cut])
        behind = waiting[count + 1 :]
        waiting = behind[gpus[behind] <= room]
    return granted


def _none(count: int) -> BoolArray:
    return np.zeros(count, dtype=np.bool_)
