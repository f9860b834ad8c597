"""Themis: nobody should finish much later than on a share of the cluster of its own."""

from stretto.policies.themis.policy import Themis

__all__ = ["Themis"]
