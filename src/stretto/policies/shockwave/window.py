"""Shockwave's market: how many rounds of the next window should each job run?

Shockwave (Zheng et al., NSDI 2023), section 4 and appendix. The published programme has a binary for every
job and round. Rounds of a window are alike, so that only their number counts: an integer for each job.

    max  1/(|J| T) sum_j w_j log u_j  -  k L        u_j = f_j + p_j,  p_j D_j <= round n_j,  0 <= n_j <= T
         sum_j R_j n_j <= G T                       L >= rem_j - p_j D_j
         now_end + (rem_j - p_j D_j) / s <= ρ_max F_j        s = min(1, G / |J|)

with f_j the part done and D_j the duration of job j. The log is taken piecewise linear between the published
breakpoints; as it is concave its pieces fill up in order by themselves.
"""

from dataclasses import dataclass

import highspy
import numpy as np

from stretto.model import BoolArray, FloatArray, IntArray
from stretto.solve.linear import quiet_highs

BREAKPOINTS = np.array([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])  # of utility [published code]
ORIGIN = 1e-6  # whose log stands for log 0; chosen
SLACK = 1e-9  # of a bound; rounding

_INTEGER = int(highspy.HighsVarType.kInteger)
_CONTINUOUS = int(highspy.HighsVarType.kContinuous)


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """What the next rounds are about. Columns are (jobs,)."""

    rounds: int  # T
    round_s: float
    gpus: int  # G
    asked: IntArray  # R
    done: FloatArray  # f, in [0, 1]
    duration_s: FloatArray  # D, on what was asked for
    weight: FloatArray  # w

    @property
    def remaining_s(self) -> FloatArray:
        """(jobs,) rem."""
        left_s: FloatArray = (1.0 - self.done) * self.duration_s
        return left_s


@dataclass(frozen=True, slots=True, eq=False)
class Solved:
    """A number of rounds for each job."""

    rounds: IntArray  # (jobs,) n
    gap: float  # certified, relative to the value; inf where the limit came before a bound


def best_rounds(
    window: Window, lateness_cost: float, least_progress: FloatArray, nodes: int, gap: float
) -> Solved | None:
    """The programme's optimum within `gap`, or the best after so many branch-and-bound nodes.

    lateness_cost: k, per second. least_progress: (jobs,) p that the finish-time-fairness rows ask for. None
    where they cannot all be had, or nothing was found within the limit.
    """
    jobs = len(window.asked)
    most = np.minimum(1.0 - window.done, window.rounds * window.round_s / window.duration_s)
    if (least_progress > most + SLACK).any():
        return None
    slope, width = _pieces(window.done)
    sure_late_s = float(np.maximum(window.remaining_s - window.rounds * window.round_s, 0.0).max(initial=0.0))
    gain = window.weight[:, None] * slope
    cost = lateness_cost * jobs * window.rounds
    scale = float(max(gain.max(initial=0.0), cost, 1e-300))

    # Columns: n by job, the pieces of p by job, then L beyond what is late for sure, in units of a round.
    pieces = slope.shape[1]
    row_of, piece_job = np.arange(jobs), np.repeat(np.arange(jobs), pieces)
    at_piece = jobs + np.arange(jobs * pieces)
    last = jobs + jobs * pieces
    objective = np.concatenate((np.zeros(jobs), gain.ravel() / scale, [-cost * window.round_s / scale]))
    upper = np.concatenate((np.full(jobs, float(window.rounds)), width.ravel(), [np.inf]))

    # Rows: p D <= round n; p D / round + L >= (rem - sure) / round; p >= least; R n <= G T.
    a_round = window.round_s / window.duration_s
    entries = [
        (piece_job, at_piece, np.ones(jobs * pieces)),
        (row_of, row_of, -a_round),
        (jobs + piece_job, at_piece, np.repeat(1.0 / a_round, pieces)),
        (jobs + row_of, np.full(jobs, last), np.ones(jobs)),
        (2 * jobs + piece_job, at_piece, np.ones(jobs * pieces)),
        (np.full(jobs, 3 * jobs), row_of, window.asked.astype(np.float64)),
    ]
    late = (window.remaining_s - sure_late_s) / window.round_s
    lower_row = np.concatenate(
        (np.full(jobs, -np.inf), late, np.minimum(least_progress, most), np.full(1, -np.inf))
    )
    upper_row = np.concatenate((np.zeros(jobs), np.full(2 * jobs, np.inf), [window.gpus * window.rounds]))
    highs = _loaded(objective, upper, entries, lower_row, upper_row, integers=jobs)
    highs.setOptionValue("mip_max_nodes", nodes)
    highs.setOptionValue("mip_rel_gap", gap)
    highs.run()
    info = highs.getInfo()
    if info.primal_solution_status != int(highspy.SolutionStatus.kSolutionStatusFeasible):
        return None
    rounds = np.rint(np.array(highs.getSolution().col_value)[:jobs]).astype(np.int64)
    return Solved(rounds, float(info.mip_gap))


def _pieces(done: FloatArray) -> tuple[FloatArray, FloatArray]:
    """(jobs, pieces) slopes of log u and how far each piece still reaches, from the part done to 1."""
    logs = np.log(np.maximum(BREAKPOINTS, ORIGIN))
    slope = np.diff(logs) / np.diff(BREAKPOINTS)
    width = np.clip(BREAKPOINTS[None, 1:] - np.maximum(BREAKPOINTS[None, :-1], done[:, None]), 0.0, None)
    return np.repeat(slope[None, :], len(done), axis=0), width


def _loaded(
    objective: FloatArray,
    upper: FloatArray,
    entries: list[tuple[IntArray, IntArray, FloatArray]],
    lower_row: FloatArray,
    upper_row: FloatArray,
    integers: int,
) -> highspy.Highs:
    """HiGHS with a programme to be maximised, its first columns whole numbers."""
    row, column, value = (np.concatenate([entry[part] for entry in entries]) for part in range(3))
    # HiGHS takes rows one after the other: entries sorted by row, and where each row starts.
    order = np.lexsort((column, row))
    starts = np.searchsorted(row[order], np.arange(len(lower_row) + 1))
    kinds = np.full(len(objective), _CONTINUOUS, dtype=np.int32)
    kinds[:integers] = _INTEGER
    highs = quiet_highs()
    highs.passModel(
        len(objective),
        len(lower_row),
        len(value),
        int(highspy.MatrixFormat.kRowwise),
        int(highspy.ObjSense.kMinimize),
        0.0,
        -objective,
        np.zeros(len(objective)),
        upper,
        lower_row,
        upper_row,
        starts.astype(np.int32),
        column[order].astype(np.int32),
        value[order],
        kinds,
    )
    return highs


def timetable(rounds: IntArray, asked: IntArray, gpus: int, window: int, urgency: FloatArray) -> BoolArray:
    """(jobs, window) which rounds each job runs: the most urgent first, in the earliest rounds with room.

    Equal urgencies: larger requests first, since small ones fit in what these leave, then by row. A job for
    which fewer rounds have room than it should run gets those.
    """
    runs = np.zeros((len(rounds), window), dtype=np.bool_)
    left = np.full(window, gpus)
    for row in np.lexsort((np.arange(len(rounds)), -asked, -urgency)).tolist():
        room = np.flatnonzero(left >= asked[row])[: rounds[row]]
        runs[row, room] = True
        left[room] -= asked[row]
    return runs
