"""Who gets how many GPUs, and why: one published idea per file."""
