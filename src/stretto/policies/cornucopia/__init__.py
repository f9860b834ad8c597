"""Cornucopia: interactive jobs first, at once, without stopping the batch jobs for it."""
