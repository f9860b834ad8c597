"""One file per command: read, call, print.

A command imports what it needs when it is called, so that `stretto --help` does not wait for solvers.
"""
