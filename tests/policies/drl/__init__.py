"""Tests of `stretto.policies.drl`."""
