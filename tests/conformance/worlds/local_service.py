"""The command line with a service over several agents that somebody else has started.

Run as `python local_service.py AGENTS.json DOWN_AFTER_S serve …`; the file lists node, URL and token of each.
"""

import importlib
import json
import os
import sys
from pathlib import Path

from stretto.backends.local.agent_client import RemoteAgent
from stretto.backends.local.backend import LocalBackend
from stretto.backends.local.options import LocalOptions
from stretto.backends.options import Site
from stretto.backends.protocol import Backend
from stretto.cli.app import main

if __name__ == "__main__":
    told, down_after_s = Path(sys.argv.pop(1)), float(sys.argv.pop(1))

    async def opened(self: LocalOptions, site: Site) -> Backend:
        agents = [RemoteAgent(*one) for one in json.loads(told.read_text(encoding="utf-8"))]
        return await LocalBackend(agents, down_after_s).open()

    LocalOptions.open = opened  # type: ignore[method-assign]
    if "CLOCKS" in os.environ:
        sys.path.insert(0, str(Path(__file__).parents[2] / "service" / "crash"))
        importlib.import_module("jumping").install()
    main()
