"""One file per command: read, call, print."""
