"""Tests of `stretto.policies.synergy`."""
