"""Tests of `stretto.policies.three_sigma`."""
