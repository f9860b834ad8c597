"""Pollux: GPUs and batch sizes chosen together, by evolving matrices of GPUs on nodes."""
