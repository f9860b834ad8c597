"""Tests of `stretto.policies.optimus`."""
