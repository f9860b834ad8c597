"""A learned scheduler: a network decides about one GPU at a time."""
