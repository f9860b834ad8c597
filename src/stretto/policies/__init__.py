"""Who gets how many GPUs, and why? One published idea per file, found by name through the registry."""

from stretto.policies.registry import (
    POLICIES,
    PolicyDescription,
    describe_policies,
    load_policy,
    policy_names,
)

__all__ = ["POLICIES", "PolicyDescription", "describe_policies", "load_policy", "policy_names"]
