"""Tests of `stretto.policies.shockwave`."""
