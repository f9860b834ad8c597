"""The supervisor of a worker as the first process of a pod.

Run as `python3 -E -S pod_supervisor.py RUN ORDERS` beside supervisor.py, both from a ConfigMap: an image
needs nothing but Python. What to start is in the environment, what the worker writes is the container's
log, and how it ended is the container's message of termination. Its kubelet stops it by SIGTERM, and kills
it when its grace is over. Orders come by the file ORDERS, in which the kubelet shows an annotation of the
pod.
"""

from __future__ import annotations  # images may have an older Python than we

import json
import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __name__ != "__main__":
    from stretto.agent import supervisor
else:  # in a pod, where supervisor.py is no part of a package
    sys.path.insert(0, str(Path(__file__).parent))
    import supervisor

START = "STRETTO_POD_START"  # in the environment of this process only: the request, as JSON
MESSAGE = "STRETTO_TERMINATION_LOG"  # a file instead of the usual one, where containers are only played
TERMINATION_LOG = "/dev/termination-log"
KUBELET_KILLS_S = 1e6  # of grace after SIGTERM: the kubelet knows how much there really is
LOOK_MS = 500  # between two looks at the file of orders; chosen: a kubelet takes seconds to write it anyway


class PodSupervisor(supervisor.Supervisor):
    """One worker, alone in its pod."""

    def __init__(self, run: Path, orders: Path) -> None:
        super().__init__(run)
        self.orders_file = orders
        self.orders_text = b""

    def new_orders(self) -> bytes:
        """Lines of the annotation that were not read before; it only ever grows."""
        new = self.orders_text[self.orders_read :]
        new = new[: new.rfind(b"\n") + 1]
        self.orders_read += len(new)
        return new

    def pursue(self) -> int | None:
        """What is due, and whether there are new orders; milliseconds until more may be."""
        with suppress(OSError):
            text = self.orders_file.read_bytes()
            if len(text) > len(self.orders_text):
                self.orders_text, self.was_called = text, True
                return 0
        wait_ms = super().pursue()
        return LOOK_MS if wait_ms is None else min(wait_ms, LOOK_MS)


def main() -> int:
    """Keep the worker that the environment describes; its exit status."""
    start: dict[str, Any] = json.loads(os.environ.pop(START))
    message = Path(os.environ.pop(MESSAGE, TERMINATION_LOG))
    # A container that is started twice must not find what the first one left.
    run = Path(tempfile.mkdtemp(prefix=supervisor.POD_RUN, dir=sys.argv[1]))
    start |= {"cwd": start["cwd"] or str(Path.cwd()), "log": "inherit", "env": {}}
    supervisor.write_durably(run / "start.json", start)
    status = PodSupervisor(run, Path(sys.argv[2])).keep()
    with suppress(OSError):
        message.write_bytes((run / "ended.json").read_bytes()[:4096])
    return status


if __name__ == "__main__":
    sys.exit(main())
