"""Run a script that trains, slowly until a file is there: `unhurried.py FILE SCRIPT [ARGUMENT...]`.

So what is to happen while it trains can be waited for, on machines of any speed.
"""

import runpy
import sys
import time
from pathlib import Path
from typing import Any

import torch.distributed
from torch.optim.optimizer import register_optimizer_step_pre_hook

STEP_S = 0.5  # of one worker; more of them take a part each


def main(file: str, script: str) -> None:
    """Train as the script does."""
    there = Path(file)

    def wait(*_: Any) -> None:
        if not there.exists():
            workers = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
            time.sleep(STEP_S / workers)

    register_optimizer_step_pre_hook(wait)
    sys.argv = sys.argv[2:]
    sys.path[0] = str(Path(script).parent.resolve())
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:3])
