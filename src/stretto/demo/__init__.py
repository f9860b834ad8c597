"""What does it look like when real jobs share a machine? A service of its own, jobs, and what became of them."""
