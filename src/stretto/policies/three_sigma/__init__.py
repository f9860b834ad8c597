"""3Sigma: deadlines under uncertainty, with distributions of runtimes instead of numbers."""

from stretto.policies.three_sigma.policy import ThreeSigma

__all__ = ["ThreeSigma"]
