"""Logging in at an identity provider, which the tests start on loopback."""
