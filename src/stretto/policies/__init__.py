"""Which job gets how many GPUs, and why? A package for each paper, a file for each simple rule."""

from stretto.policies.registry import (
    POLICIES,
    PolicyDescription,
    describe_policies,
    load_policy,
    policy_names,
)

__all__ = ["POLICIES", "PolicyDescription", "describe_policies", "load_policy", "policy_names"]
