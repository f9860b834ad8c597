"""Mathematics on arrays: what is the best choice under these limits, and how sure is that?

Nothing here knows what a job is. Limits on effort are counts, never seconds: the same arrays always give
the same answer.
"""

from stretto.solve.linear import LpSolution, NoSolution, maximise
from stretto.solve.mckp import assign, assign_by_prices, assign_exactly
from stretto.solve.program import Assignment, Limits, MultipleChoiceKnapsack, SparseKnapsack

__all__ = [
    "Assignment",
    "Limits",
    "LpSolution",
    "MultipleChoiceKnapsack",
    "NoSolution",
    "SparseKnapsack",
    "assign",
    "assign_by_prices",
    "assign_exactly",
    "maximise",
]
