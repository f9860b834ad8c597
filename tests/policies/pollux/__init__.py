"""Tests of `stretto.policies.pollux`."""
