"""UniSched: leases, rewards and cells for jobs with deadlines, without, and still to be profiled."""

from stretto.policies.unisched.policy import UniSched

__all__ = ["UniSched"]
