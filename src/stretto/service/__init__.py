"""The real world around the decision: what happens is logged, what should run is compared with what does."""
