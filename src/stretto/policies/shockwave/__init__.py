"""Shockwave: a market for the rounds of the next window, fair in the long run."""

from stretto.policies.shockwave.policy import Shockwave

__all__ = ["Shockwave"]
