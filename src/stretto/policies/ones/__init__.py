"""ONES: batch sizes and GPUs of all jobs at once, by evolving whole schedules."""

from stretto.policies.ones.policy import Ones

__all__ = ["Ones"]
