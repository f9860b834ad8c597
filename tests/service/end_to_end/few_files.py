"""The command line with few files, and a service that soon takes silence for the end of a node.

Run as `python few_files.py FILES SILENT_S serve …`; 0 files are as many as there may be.
"""

import resource
import sys
from functools import partial

from stretto.backends.local import backend
from stretto.cli.app import main

if __name__ == "__main__":
    files, silent_s = int(sys.argv.pop(1)), float(sys.argv.pop(1))
    if files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    vars(backend).update(LocalBackend=partial(backend.LocalBackend, down_after_s=silent_s))
    main()
