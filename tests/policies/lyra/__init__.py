"""Tests of `stretto.policies.lyra`."""
