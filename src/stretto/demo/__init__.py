"""What does it look like when real jobs share a machine? A service, jobs, and what became of them."""
