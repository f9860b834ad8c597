"""Tests of `stretto.policies.cornucopia`."""
