"""What is known of common models: how fast a step is on which GPU, and how far a larger batch helps."""
