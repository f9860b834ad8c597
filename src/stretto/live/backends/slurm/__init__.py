"""Workers as jobs of Slurm: one small job for each, so that growing touches none of the others."""

from stretto.live.backends.slurm.opening import open_slurm
from stretto.live.backends.slurm.options import SlurmOptions

__all__ = ["SlurmOptions", "open_slurm"]
