"""Tests of `stretto.policies.chronus`."""
