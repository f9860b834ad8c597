"""Themis: nobody should finish much later than on a share of the cluster of its own."""
