"""Tests of `stretto.policies.afs`."""
