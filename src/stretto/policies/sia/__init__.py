"""Sia: goodput of every job on every bundle of GPUs, and the best choice of bundles as one program."""
