"""Synergy: the order of another policy, and cores by what jobs can use of them."""

from stretto.policies.synergy.policy import Synergy

__all__ = ["Synergy"]
