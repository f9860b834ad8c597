"""A cluster of values instead of machines: workers that follow the physics of the simulated world."""
