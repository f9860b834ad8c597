"""The policy `stretto` beside specialists: on a mixed workload, and on the ground of each of their papers."""
