"""Tests of `stretto.policies.common`."""
