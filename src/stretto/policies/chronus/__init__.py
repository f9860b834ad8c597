"""Chronus: leases for jobs with deadlines, best effort in the gaps."""
