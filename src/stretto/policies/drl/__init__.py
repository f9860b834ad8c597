"""A learned scheduler: a network decides about one GPU at a time."""

from stretto.policies.drl.policy import LearnedSizes

__all__ = ["LearnedSizes"]
