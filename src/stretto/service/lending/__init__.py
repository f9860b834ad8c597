"""Lenders of a running service: where their need comes from, and how their nodes change hands."""
