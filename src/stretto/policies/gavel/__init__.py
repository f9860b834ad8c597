"""Gavel: time fractions by a linear programme, realised in rounds."""

from stretto.policies.gavel.policy import Gavel

__all__ = ["Gavel"]
