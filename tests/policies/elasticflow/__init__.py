"""Tests of `stretto.policies.elasticflow`."""
