"""Optimus: one GPU for everybody, then one more to whoever gains most time from it."""

from stretto.policies.optimus.policy import Optimus

__all__ = ["Optimus"]
