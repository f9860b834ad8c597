"""Tests of `stretto.policies.hydra`."""
