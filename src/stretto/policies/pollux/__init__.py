"""Pollux: GPUs and batch sizes chosen together, by evolving matrices of GPUs on nodes."""

from stretto.policies.pollux.policy import Pollux

__all__ = ["Pollux"]
