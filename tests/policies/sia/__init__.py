"""Tests of `stretto.policies.sia`."""
