"""Our own policy: remaining times, damped by how long a decision lasts."""
