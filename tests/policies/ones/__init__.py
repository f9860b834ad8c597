"""Tests of `stretto.policies.ones`."""
