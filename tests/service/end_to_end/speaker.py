"""A worker that trains in generations, as the SDK has them, until FOLDER/go is there; nothing is installed.

Run by a job as `python -I -S speaker.py FOLDER`. It ends with status 0 when it is told to leave, by a message
or by SIGTERM, as polite scripts do.
"""

import json
import os
import signal
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from http import HTTPStatus
from pathlib import Path
from typing import Any

POLL_S = 0.2
AGAIN_S = 0.1  # where the service does not answer


def ask(path: str, body: dict[str, Any] | None = None) -> bytes | None:
    """What the service says; None where it is not there. Ends this process where it is not wanted."""
    request = urllib.request.Request(
        f"{os.environ['STRETTO_URL']}/api/v1/worker/{path}",
        data=None if body is None else json.dumps(body).encode(),
        headers={
            "authorization": f"Bearer {os.environ['STRETTO_TOKEN']}",
            "content-type": "application/json",
        },
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return bytes(answer.read())
    except urllib.error.HTTPError as refused:
        if refused.code == HTTPStatus.GONE:
            sys.exit(0)
        return None
    except OSError:
        time.sleep(AGAIN_S)
        return None


def main() -> int:
    """Follow the generations; the exit status."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    go, me, latest, is_ready = Path(sys.argv[1], "go"), os.environ["STRETTO_WORKER_ID"], 0, False
    while not (latest and go.exists()):
        is_ready = is_ready or ask("ready", {"worker": me}) is not None
        query = urllib.parse.urlencode({"worker": me, "after": latest, "wait_s": POLL_S})
        said = ask(f"generation?{query}")
        if not said:
            continue
        told = json.loads(said)
        if told["leave"] or (latest and me not in [one["id"] for one in told["workers"]]):
            return 0
        latest = told["generation"]
        ask("joined", {"worker": me, "generation": latest})
    return 0


if __name__ == "__main__":
    sys.exit(main())
