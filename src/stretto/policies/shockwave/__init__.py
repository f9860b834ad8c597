"""Shockwave: a market for the rounds of the next window, fair in the long run."""
