"""A simulated world: jobs whose truth is known to it alone."""
