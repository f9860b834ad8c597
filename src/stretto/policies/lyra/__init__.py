"""Lyra: base demands by running time, then flexible workers by a knapsack, on own and on lent servers."""

from stretto.policies.lyra.policy import Lyra, LyraTuned

__all__ = ["Lyra", "LyraTuned"]
