"""UniSched: leases, rewards and cells for jobs with deadlines, without, and still to be profiled."""
