"""What the solvers raise."""


class NoSolution(ValueError):
    """Nothing satisfies the constraints, or a programme that must have an optimum has none."""
