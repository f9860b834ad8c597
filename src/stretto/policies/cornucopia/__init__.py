"""Cornucopia: interactive jobs first, at once, without stopping the batch jobs for it."""

from stretto.policies.cornucopia.policy import Cornucopia

__all__ = ["Cornucopia"]
