"""From counts to named GPUs."""
