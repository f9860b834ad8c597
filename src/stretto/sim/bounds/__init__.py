"""How well could any scheduler do? Bounds that no schedule of a workload on a cluster can pass."""

from stretto.sim.bounds.bounds import bounds_of

__all__ = ["bounds_of"]
