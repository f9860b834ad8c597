"""What does the log add up to? Events, and the state that folding them gives: no clock, no I/O."""
