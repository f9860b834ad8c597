"""Workers as jobs of Slurm: one small job for each, so that growing touches none of the others."""

from stretto.backends.slurm.backend import open_slurm
from stretto.backends.slurm.options import SlurmOptions

__all__ = ["SlurmOptions", "open_slurm"]
