"""Clusters of any size in a steady state, after published statistics, and how long decisions take there."""
