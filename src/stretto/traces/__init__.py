"""What arrives when: workloads read from files, or made from published statistics."""
