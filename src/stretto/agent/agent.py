"""One agent: takes its state directory, finds the workers there, and answers until it is told to end."""

import argparse
import ctypes
import os
import secrets
import signal
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType

from stretto.agent import open_files, presence, supervisor, unix_users
from stretto.agent.inherited_env import inherited
from stretto.agent.node import MAX_LOG_BYTES, this_node
from stretto.agent.run_directory import SETUPS
from stretto.agent.server import Fence, Server
from stretto.agent.worker_table import WorkerTable

LOOKS = 20  # at whether workers live, in the time after which an idle agent ends; chosen
STAY_KNOWN_S = 1.0  # between looks at the files by which an agent is found; chosen
TAKEN_STATUS = 3  # another agent has the state directory


def main(arguments: Sequence[str] | None = None) -> int:
    """Run an agent; its exit status."""
    settings = options().parse_args(arguments)
    try:
        unix_users.check_root(settings.run_as)
        node = replace(
            this_node(settings.node, settings.gpus, settings.gpu_type),
            pass_env=tuple(settings.pass_env),
            run_as=settings.run_as,
            max_log_bytes=settings.max_log_bytes,
        )
        host, port = host_and_port(settings.listen)
        state = state_folder(settings.state)
        if settings.run_as:
            unix_users.open_for_users(state, state / "runs", state / SETUPS)
        lock = presence.take(state)
        if lock is None:
            print(f"another agent has {state}", file=sys.stderr)
            return TAKEN_STATUS
        token = presence.token_in(state)
    except (ValueError, OSError) as failure:
        print(failure, file=sys.stderr)
        return 2
    open_files.raise_limit()
    if settings.run_as:
        os.umask(0o077)
    # Orphans of supervisors that were killed come to us: none stays behind as a zombie, and none hides from
    # us.
    ctypes.CDLL(None).prctl(supervisor.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    instance = secrets.token_hex(6)
    workers = WorkerTable(
        state,
        node,
        instance,
        environ=inherited(os.environ, settings.pass_env),
        adopts=True,
        groups=not settings.no_control_groups,
    )
    with Server((host, port), workers, token, Fence(state / "epoch.json")) as server:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, ending(server))
        url = f"http://{host}:{server.server_port}"
        address = {"url": url, "pid": os.getpid(), "instance": instance, "node": node.name}
        presence_files = presence.Presence(state, lock, token, address)
        presence_files.show()
        print(f"agent of {node.name} answers at {url}", flush=True)
        threading.Thread(target=stay_known, args=(server, presence_files), daemon=True).start()
        if settings.end_after_s > 0:
            threading.Thread(target=end_once_idle, args=(server, settings.end_after_s), daemon=True).start()
        server.serve_forever(poll_interval=0.2)
    workers.close()
    os.close(lock)
    return 0


def options() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m stretto.agent", description=__doc__)
    parser.add_argument("--state", type=Path, required=True, help="a directory of its own")
    parser.add_argument("--listen", default="127.0.0.1:0", help="address and port; port 0 takes a free one")
    parser.add_argument("--node", default=socket.gethostname(), help="name of this machine")
    parser.add_argument("--gpus", type=int, help="places for workers where no real GPU is meant")
    parser.add_argument("--gpu-type", default="", help="type of the GPUs; default: as the driver names it")
    parser.add_argument("--run-as", action="store_true", help="run each worker as the user that is asked for")
    parser.add_argument(
        "--pass-env",
        action="append",
        default=[],
        metavar="NAME",
        help="a variable of ours, or several with * and ?, that workers find too; may be repeated",
    )
    parser.add_argument(
        "--max-log-bytes",
        type=int,
        default=MAX_LOG_BYTES,
        help="that the logs of a job take here, beyond which the oldest is dropped; 0: any amount",
    )
    parser.add_argument(
        "--no-control-groups",
        action="store_true",
        help="make no control group for each worker, by which everything that it starts is found",
    )
    parser.add_argument(
        "--end-after-s",
        type=float,
        default=0.0,
        help="end once no worker lives and nobody has asked for so long; 0: never",
    )
    return parser


def host_and_port(text: str) -> tuple[str, int]:
    """The two parts of HOST:PORT; raises ValueError."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"--listen must be HOST:PORT, got {text!r}")
    return host, int(port)


def state_folder(path: Path) -> Path:
    """The agent's own directory, made readable for its user alone.

    Raises PermissionError where another user has made it, or may write there: what lies in it is run as us.
    """
    for each in (path, path / "runs", path / "forgotten"):
        each.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_own(each)
    return path.resolve()


def check_own(folder: Path, follow: bool = True) -> None:
    """Raise PermissionError for a directory that is not ours alone to write to.

    follow: whether it may be a link, which elsewhere than among our own files others may have made.
    """
    status = folder.stat(follow_symlinks=follow)
    if not stat.S_ISDIR(status.st_mode):
        raise PermissionError(f"{folder} must be a directory; others could have work run as us")
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise PermissionError(f"{folder} must be ours alone to write to; others could have work run as us")


def stay_known(server: Server, known: presence.Presence) -> None:
    """Put right what becomes of the files by which this agent is found; end where another may have come."""
    while known.is_ours():
        time.sleep(STAY_KNOWN_S)
        with suppress(OSError):  # as on a full disk
            known.show()
    print(f"{known.state / presence.LOCK} is not ours any more: workers go on without us", flush=True)
    server.shutdown()


def end_once_idle(server: Server, after_s: float) -> None:
    """End an agent that is not needed: a later need starts another, which finds what is left of workers."""
    while (left_s := after_s - server.idle_s) > 0 or not server.workers.all_ended:
        time.sleep(max(left_s, after_s / LOOKS))
    print(f"nobody has asked for {after_s:g} s, and no worker lives", flush=True)
    server.shutdown()


def ending(server: Server) -> Callable[[int, FrameType | None], None]:
    """What to do at SIGTERM: answer no more, and leave the workers alone."""

    def end(number: int, frame: FrameType | None) -> None:
        # From another thread: `shutdown` waits for the loop that this one is in.
        threading.Thread(target=server.shutdown, daemon=True).start()

    return end
