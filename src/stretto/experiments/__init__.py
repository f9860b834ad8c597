"""Simulations by the dozen: what to run, in parallel, and the tables of the papers made from it."""
