"""Tests of `stretto.policies.unisched`."""
