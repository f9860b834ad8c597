"""The command line on a host by another name, as in a pod.

Run as `python named_host.py NAME WORD...`, by root.
"""

import ctypes
import socket
import sys

from stretto.cli.app import main

CLONE_NEWUTS = 0x04000000  # a namespace with a host's name of its own

if __name__ == "__main__":
    name = sys.argv.pop(1)
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUTS):
        sys.exit(f"no namespace for the name of a host: error {ctypes.get_errno()}")
    socket.sethostname(name)
    main()
