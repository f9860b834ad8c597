"""Where the command `stretto` begins: importing takes a moment, in which ctrl-C is one line too."""

import gc
import os
import signal
import sys
from typing import NoReturn

INTERRUPTED = 128 + signal.SIGINT  # as shells report it


def main() -> NoReturn:
    """Run the command that the words of this process name, and leave with its status."""
    try:
        gc.disable()  # modules stay: to look for garbage among them is a tenth of this time
        from stretto.cli.app import main as run

        gc.freeze()
        gc.enable()
        run()
    except KeyboardInterrupt:  # while modules are imported, or after the command has said what it had to
        os.write(2, b"stretto: interrupted\n")
        os._exit(INTERRUPTED)  # a second ctrl-C must not find an interpreter that is half gone
    sys.exit(0)


if __name__ == "__main__":
    main()
