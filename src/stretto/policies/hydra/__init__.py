"""Hydra: least completion time and lateness by sequencing jobs, without preemption."""

from stretto.policies.hydra.policy import Hydra

__all__ = ["Hydra"]
