"""Branch and bound by HiGHS, within a budget of nodes.

Rows that are alike are one class with a count, one integer variable per class and column. A program over the
single rows would be searched once for every order of equal rows, without end.
"""

from dataclasses import dataclass

import highspy
import numpy as np

from stretto.solve.arrays import FloatArray, IntArray
from stretto.solve.linear import quiet_highs
from stretto.solve.program import Program

_COLUMNWISE = int(highspy.MatrixFormat.kColwise)
_MINIMISE = int(highspy.ObjSense.kMinimize)
_INTEGER = 1


@dataclass(frozen=True, slots=True)
class Branched:
    """What came of the branching."""

    pick: IntArray  # (rows,) the best choice found, or the one it started from
    bound: float  # no choice is worth more
    nodes: int
    proven: bool  # nothing is better than the pick, to HiGHS's tolerance of about 1e-6


@dataclass(frozen=True, slots=True)
class Classes:
    """Rows that are alike, and the cells of one of each class, without "none"."""

    members: list[IntArray]  # (classes,) rows of each, ascending
    of_cell: IntArray  # (cells,) class
    offset: IntArray  # (cells,) from the beginning of a row
    cell: IntArray  # (cells,) of the first row of the class
    worth: FloatArray  # (cells,)


def classes_of(program: Program) -> Classes:
    """The rows of a program by what they may pick, in the order in which each class first appears."""
    members: dict[bytes, list[int]] = {}
    for row, (start, end) in enumerate(zip(program.start.tolist(), program.end.tolist(), strict=True)):
        key = program.plain[start:end].tobytes() + program.column[start:end].tobytes()
        if not program.shares_units:
            key += program.units[start:end].tobytes()
        members.setdefault(key, []).append(row)
    first = np.array([rows[0] for rows in members.values()], dtype=np.int64)
    sizes = (program.end - program.start)[first] - 1
    of_cell = np.repeat(np.arange(first.size), sizes)
    offset = np.arange(of_cell.size) - np.repeat(np.cumsum(sizes) - sizes, sizes) + 1
    cell = program.start[first][of_cell] + offset
    return Classes([np.array(rows) for rows in members.values()], of_cell, offset, cell, program.plain[cell])


def branched(
    program: Program, classes: Classes, start: IntArray, nodes: int, presolve: bool = False
) -> Branched:
    """The best choice found with at most `nodes` branch-and-bound nodes, from the feasible pick `start`.

    presolve: helps whole programs; on those reduced by their prices it took longer than it saved.
    """
    if not classes.cell.size:
        return Branched(start, 0.0, 0, proven=True)
    # HiGHS compares with absolute tolerances, so values are brought near 1.
    scale = float(classes.worth.max())
    highs = _loaded(program, classes, scale)
    highs.setOptionValue("presolve", "on" if presolve else "off")
    highs.setOptionValue("mip_max_nodes", nodes)
    highs.setOptionValue("mip_rel_gap", 0.0)
    highs.setOptionValue("mip_abs_gap", 0.0)
    # A known choice cuts off most of the tree.
    hint = highspy.HighsSolution()
    hint.col_value = _counts(program, classes, start).tolist()
    highs.setSolution(hint)
    highs.run()

    info = highs.getInfo()
    pick = start
    if info.primal_solution_status == int(highspy.SolutionStatus.kSolutionStatusFeasible):
        # What HiGHS calls feasible is checked in whole numbers: its tolerances are wider than ours.
        picks = _picks(program, classes, np.rint(np.array(highs.getSolution().col_value)).astype(np.int64))
        if program.total(picks) > program.total(start) and (program.taken(picks) <= program.capacity).all():
            pick = picks
    proven = highs.getModelStatus() == highspy.HighsModelStatus.kOptimal
    bound = program.total(pick) if proven else -float(info.mip_dual_bound) * scale
    return Branched(pick, bound, int(info.mip_node_count), proven)


def _loaded(program: Program, classes: Classes, scale: float) -> highspy.Highs:
    """HiGHS with one variable per cell, one row per class, one row per kind."""
    cells = classes.cell.size
    counts = np.array([rows.size for rows in classes.members], dtype=np.float64)
    # Column by column: a cell counts once in the row of its class and takes its units in the row of its kind.
    index = np.empty(2 * cells, dtype=np.int32)
    index[0::2] = classes.of_cell
    index[1::2] = counts.size + program.kind[classes.cell]
    entry = np.ones(2 * cells)
    entry[1::2] = program.units[classes.cell]
    upper = np.concatenate((counts, program.capacity.astype(np.float64)))
    highs = quiet_highs()
    highs.passModel(
        cells,
        upper.size,
        2 * cells,
        _COLUMNWISE,
        _MINIMISE,
        0.0,
        -classes.worth / scale,
        np.zeros(cells),
        counts[classes.of_cell],
        np.full(upper.size, -np.inf),
        upper,
        np.arange(0, 2 * cells + 1, 2, dtype=np.int32),
        index,
        entry,
        np.full(cells, _INTEGER, dtype=np.int32),
    )
    return highs


def _counts(program: Program, classes: Classes, pick: IntArray) -> FloatArray:
    """How many rows of the class pick the column, for each cell."""
    offset = pick - program.start
    counted = np.zeros((len(classes.members), int(classes.offset.max()) + 1))
    for number, rows in enumerate(classes.members):
        np.add.at(counted[number], offset[rows], 1.0)
    counts: FloatArray = counted[classes.of_cell, classes.offset]
    return counts


def _picks(program: Program, classes: Classes, counts: IntArray) -> IntArray:
    """Give each class's columns to its rows, lowest column to lowest row."""
    pick = program.start.copy()
    for number, rows in enumerate(classes.members):
        cells = np.flatnonzero((classes.of_cell == number) & (counts > 0))
        offsets = np.repeat(classes.offset[cells], counts[cells])
        pick[rows[: offsets.size]] += offsets
    return pick
