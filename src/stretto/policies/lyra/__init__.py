"""Lyra: base demands by running time, then flexible workers by a knapsack, on own and on lent servers."""
