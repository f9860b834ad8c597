"""Chronus: leases for jobs with deadlines, best effort in the gaps."""

from stretto.policies.chronus.policy import Chronus

__all__ = ["Chronus"]
