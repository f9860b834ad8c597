"""What does a simulation look like in a notebook? Runs as frames and as pictures."""

from stretto.notebook.comparison import Runs, compare
from stretto.notebook.run import Run, simulate

__all__ = ["Run", "Runs", "compare", "simulate"]
