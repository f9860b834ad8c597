"""UniSched's ILP: which jobs meet which deadline, on which cells? And a form of it that is solved fast.

UniSched (TPDS 2024), section III-C4, in linear form. Time is divided into leases k = 0, 1, ... An option o of
a job is one of its deadlines with one of its allocation policies. It is worth V_o and asks n_o GPUs (cells)
in each of l_o leases among the first Q_o. l_o = ceil(L / speed) counts the slower speed of spread cells.

    max  sum_o V_o u_o
    s.t. sum over the options of a job of u_o        <= 1                     (6), (13)
         sum_{k < Q_o} z_ok >= l_o u_o,  z_ok <= u_o                          (7), (12)
         sum_o rows_og z_ok                          <= rows of the free cells, every k, g     (14)

The printed (7) bounds leases from above, and (12) is a product of three variables; this is what they mean.

`solve_leases` is that ILP. `choose_options` has no z. For GPUs counted in row 0 alone, the leases of chosen
options can be laid out on one condition. For every a, what has to happen in the first a leases fits:

    sum_o n_o max(0, l_o - (Q_o - a)+) u_o  <=  G_0 + ... + G_(a-1),

The condition is necessary and sufficient, since jobs are all there at lease 0 and windows are prefixes (the
minimum cut of jobs -> leases). It is exact when a job may use part of its GPUs, hence exact for jobs of one
GPU and a relaxation for wider ones. Rows for a few a are enough in practice; leaving some out keeps the value
an upper bound.
"""

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from stretto.model import BoolArray, FloatArray, IntArray
from stretto.solve.packing import most_valuable, solve_whole

CHOSEN = 0.5  # a binary variable above this is 1


@dataclass(frozen=True, eq=False)
class Options:
    """Options of all jobs, one below the other; columns are (options,)."""

    job: IntArray  # whose; options of a job stand together
    value: FloatArray  # V
    gpus: IntArray  # that its cells take
    leases: IntArray  # l, at least 1
    window: IntArray  # Q, at least l

    def __len__(self) -> int:
        """The number of options."""
        return len(self.job)

    def of(self, chosen: IntArray | BoolArray) -> "Options":
        """Some of them."""
        return Options(
            self.job[chosen],
            self.value[chosen],
            self.gpus[chosen],
            self.leases[chosen],
            self.window[chosen],
        )


@dataclass(frozen=True, eq=False)
class Chosen:
    """A solution with its quality."""

    taken: BoolArray  # (options,)
    value: float
    bound: float  # no solution is worth more

    @property
    def gap(self) -> float:
        """How far the value may be from the best, relative to the latter; 0 proved optimal."""
        return max(self.bound - self.value, 0.0) / self.bound if self.bound > 0 else 0.0


def choose_options(options: Options, capacity: IntArray, ends: IntArray, most_nodes: int) -> Chosen | None:
    """The most valuable options for which there is room in every prefix of leases; None if none was found.

    capacity: (leases,) GPUs, not falling; ends: the a for which there is a row. Equal options of different
    jobs are one integer variable. At most `most_nodes` nodes of branch and bound, then the best so far with
    its bound.
    """
    if not len(options):
        return Chosen(np.zeros(0, dtype=np.bool_), 0.0, 0.0)
    # Equal jobs become one integer variable: without that, branching would try their permutations.
    groups, group_of, members = _equal_jobs(options)
    kinds = options.of(groups)
    load = must_by(kinds, ends)
    room = np.concatenate((np.zeros(1), capacity.cumsum()))[ends].astype(np.float64)
    # One row for each prefix of leases that could be overfull, and one for each job: (6), (13).
    binding = load @ members > room  # rows that can be broken at all
    jobs, once = np.unique(kinds.job, return_inverse=True)
    each_once = sparse.csr_array((np.ones(len(kinds)), (once, np.arange(len(kinds)))))
    count = np.zeros(len(jobs))
    count[once] = members
    solution = most_valuable(
        kinds.value,
        sparse.csr_array(sparse.vstack((each_once, sparse.csr_array(load[binding])))),
        np.concatenate((count, room[binding])),
        members.astype(np.float64),
        most_nodes,
    )
    if solution is None:
        return None
    return Chosen(_hand_out(options, group_of, solution.x.astype(np.int64)), solution.value, solution.bound)


def must_by(options: Options, ends: IntArray) -> FloatArray:
    """(ends, options) GPU-leases that each option cannot put off beyond its first `ends` leases."""
    later = np.maximum(options.window[None, :] - ends[:, None], 0)
    return np.asarray(options.gpus * np.maximum(options.leases - later, 0), dtype=np.float64)


def solve_leases(
    options: Options, rows: IntArray, free_rows: IntArray, most_nodes: int
) -> tuple[Chosen, BoolArray] | None:
    """The ILP as a whole: the choice and (options, leases) which leases each chosen option runs.

    rows: (options, levels) of the cells of each option; free_rows: (leases, levels) of the free cells. For
    small problems: it has a variable for every option and lease.
    """
    count, leases = len(options), len(free_rows)
    # Variables: u_o of every option, then z_ok of every option and lease in its window.
    option, lease = np.nonzero(np.arange(leases) < options.window[:, None])
    z = count + np.arange(len(option))
    size = count + len(option)
    jobs, once = np.unique(options.job, return_inverse=True)
    each_once = sparse.csr_array((np.ones(count), (once, np.arange(count))), shape=(len(jobs), size))
    # l_o u_o - sum_k z_ok <= 0: (7).
    enough = sparse.csr_array(
        (
            np.concatenate((options.leases, -np.ones(len(option)))),
            (np.concatenate((np.arange(count), option)), np.concatenate((np.arange(count), z))),
        ),
        shape=(count, size),
    )
    # z_ok - u_o <= 0: (12).
    only_chosen = sparse.csr_array(
        (
            np.concatenate((np.ones(len(z)), -np.ones(len(z)))),
            (np.tile(np.arange(len(z)), 2), np.concatenate((z, option))),
        ),
        shape=(len(z), size),
    )
    # Rows of cells by lease and level: (14).
    levels = rows.shape[1]
    cell_row = (lease[:, None] * levels + np.arange(levels)).ravel()
    within = sparse.csr_array(
        (rows[option].ravel().astype(np.float64), (cell_row, np.repeat(z, levels))),
        shape=(leases * levels, size),
    )
    limits = np.concatenate(
        (np.ones(len(jobs)), np.zeros(count), np.zeros(len(z)), free_rows.ravel().astype(np.float64))
    )
    solution = solve_whole(
        np.concatenate((options.value, np.zeros(len(z)))),
        sparse.csr_array(sparse.vstack((each_once, enough, only_chosen, within))),
        limits,
        np.ones(size),
        most_nodes,
    )
    if solution is None:
        return None
    runs = np.zeros((count, leases), dtype=np.bool_)
    runs[option, lease] = solution.x[count:] > CHOSEN
    return Chosen(solution.x[:count] > CHOSEN, solution.value, solution.bound), runs


def _equal_jobs(options: Options) -> tuple[IntArray, IntArray, IntArray]:
    """Merge jobs whose options are all equal.

    Gives the options of one job of each group, (options,) to which of them each option belongs, and how many
    jobs there are to each.
    """
    starts = np.flatnonzero(np.diff(options.job, prepend=options.job[0] - 1))
    ends = np.append(starts[1:], len(options))
    table = np.column_stack((options.value, options.gpus, options.leases, options.window)).astype(np.float64)
    first_of: dict[bytes, int] = {}
    size: dict[int, int] = {}
    target = np.zeros(len(options), dtype=np.int64)
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        first = first_of.setdefault(table[start:end].tobytes(), start)
        size[first] = size.get(first, 0) + 1
        target[start:end] = np.arange(first, first + end - start)
    targets, group_of = np.unique(target, return_inverse=True)
    members = np.bincount(group_of)
    return targets, group_of, members


def _hand_out(options: Options, group_of: IntArray, amount: IntArray) -> BoolArray:
    """(options,) which option each job of a group takes, when so many of each are taken: in their order."""
    chosen = np.zeros(len(options), dtype=np.bool_)
    left = amount.tolist()
    served: set[int] = set()
    for index, (job, group) in enumerate(zip(options.job.tolist(), group_of.tolist(), strict=True)):
        if left[group] > 0 and job not in served:
            left[group] -= 1
            served.add(job)
            chosen[index] = True
    return chosen
