"""The round: from a snapshot to a plan, checked, and the loop around it."""
