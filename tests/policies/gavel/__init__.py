"""Tests of `stretto.policies.gavel`."""
