"""Run as `python limited.py FILES WORD...`: Python with these words, which may have so many files open."""

import os
import resource
import sys

if __name__ == "__main__":
    files = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
