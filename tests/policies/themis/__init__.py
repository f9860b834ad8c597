"""Tests of `stretto.policies.themis`."""
