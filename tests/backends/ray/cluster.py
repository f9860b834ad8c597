"""A real Ray cluster on this machine: a head, and three nodes with GPUs that are only counted.

Each node has a loopback address of its own, so that they look like different machines. Everything is known
by its process id and ended by it. All tests of a session share one cluster, begun when first asked for.
"""

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from tests.service.ports import free_ports

from stretto.agent import supervisor

WITNESS = str(Path(__file__).with_name("witness.py"))
PATIENCE_S = 120.0
START_S = 600.0  # for `ray start`
LOOK_S = 0.02
STORE_BYTES = 80 << 20
TYPES = {3: "A100", 4: "A100", 5: "T4"}  # GPU type by the last number of a node's address
ANOTHER = "H100"  # of a node that only one test has
GPUS, CPUS = 4, 8
TRIES = 6  # of `ray start`: a raylet ends itself where its agent does not begin within 15 s, whatever is set
URGENT = -10  # as `nice` counts; chosen
TOO_SLOW = "timed out during startup"  # in Ray's words
SETTINGS = {  # of Ray's; a node that was killed is noticed within five seconds, one that is suspended is not
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_failure_threshold": "5",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "300",
    "RAY_USAGE_STATS_ENABLED": "0",
    "GRPC_ENABLE_FORK_SUPPORT": "0",  # else the head at times fails to let somebody in from outside
}

Found = TypeVar("Found")


def until(found: Callable[[], Found], what: str, patience_s: float = PATIENCE_S) -> Found:
    """What `found` gives as soon as that is true."""
    until_s = time.monotonic() + patience_s
    while not (value := found()):
        assert time.monotonic() < until_s, f"not within {patience_s:g} s: {what}"
        time.sleep(LOOK_S)
    return value


class RayCluster:
    """The head, its nodes, and who looks at them from outside."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="sray"))  # short: names of sockets are
        number = secrets.randbelow(200 * 250)
        self.net = f"127.{20 + number // 250}.{1 + number % 250}"
        self.head = f"{self.net}.2"
        self.port, self.client_port = free_ports(self.head, 2)
        self.address = f"{self.head}:{self.port}"
        self.client_address = f"ray://{self.head}:{self.client_port}"
        self.sessions: dict[str, int] = {}  # by address: the session in which the processes of a node are
        self.starts: dict[str, subprocess.Popen[bytes]] = {}  # `ray start`, while it runs
        self.asked: dict[str, tuple[list[str], dict[str, str]]] = {}  # by address: how it was started last
        self.witness: subprocess.Popen[str] | None = None

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the nodes with GPUs."""
        return tuple(f"{self.net}.{last}" for last in TYPES)

    def begin(self) -> None:
        """Start everything."""
        args = ["--head", "--port", str(self.port), "--ray-client-server-port", str(self.client_port)]
        args += ["--num-cpus", "4", "--num-gpus", "0", "--temp-dir", str(self.folder / "r")]
        self.start(self.head, [*args, "--include-dashboard", "false"])
        self.joined(self.head)
        for node in self.nodes:
            self.start_node(node)
            # Raylets of one machine that begin at the same moment choose the same name for their sockets.
            until(partial(self.has_begun, node), f"the raylet of {node}", START_S)
        for node in self.nodes:
            self.joined(node)

    def start_node(self, node: str, env: dict[str, str] | None = None) -> None:
        """Have a node join."""
        label = f"ray.io/accelerator-type={TYPES.get(int(node.rpartition('.')[2]), ANOTHER)}"
        args = ["--address", self.address, "--num-cpus", str(CPUS), "--num-gpus", str(GPUS)]
        self.start(node, [*args, "--labels", label], env)

    def start(self, address: str, args: list[str], env: dict[str, str] | None = None) -> None:
        """`ray start`, whose processes stay in the session that is made for them."""
        command = [str(Path(sys.executable).with_name("ray")), "start", "--node-ip-address", address]
        command += ["--object-store-memory", str(STORE_BYTES), "--include-log-monitor", "false", *args]
        self.asked[address] = args, env or {}
        state = {"STRETTO_NODE_DIR": str(self.folder / "n")}
        with (self.folder / f"{address}.log").open("wb") as log:
            self.starts[address] = subprocess.Popen(
                command,
                env={**os.environ, **SETTINGS, **state, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.sessions[address] = self.starts[address].pid
        before_others(self.starts[address].pid)

    def bring_back_lost_nodes(self) -> None:
        """Have every node in the cluster again; what is printed says how Ray took leave of it.

        A raylet ends itself where something of it does not answer in time. That is one test's failure, and
        not that of all who come after it.
        """
        for node in self.nodes:
            if any(b"/raylet/raylet" in command_of(each.pid) for each in self.of_node(node)):
                continue
            print(f"the raylet of {node} is gone: {self._last_words()}")
            self.kill_node(node)
            self.start_node(node)
            self.joined(node)

    def _last_words(self) -> str:
        """Complaints at the end of what raylets and the head wrote."""
        logs = [
            *self.folder.glob("r/session_latest/logs/raylet*.out"),
            *self.folder.glob("r/session_latest/logs/gcs*.out"),
        ]
        lines = [line for log in logs for line in log.read_text(errors="replace").splitlines()[-200:]]
        return " | ".join([line for line in lines if " E " in line or " C " in line][-8:]) or "without a word"

    def joined(self, address: str) -> None:
        """Wait until `ray start` has done its part; where a machine was too slow for it, run it again."""
        for tries_left in reversed(range(TRIES)):
            if self.starts.pop(address).wait(START_S) == 0:
                return
            words = (self.folder / f"{address}.log").read_text()
            assert tries_left, words
            assert TOO_SLOW in words, words
            self.kill_node(address)
            self.start(address, *self.asked[address])

    def has_begun(self, address: str) -> bool:
        """Whether the raylet of a node listens, or never will."""
        if self.starts[address].poll():
            return True
        found = next(
            (each for each in self.of_node(address) if b"/raylet/raylet" in command_of(each.pid)), None
        )
        words = command_of(found.pid).split(b"\0") if found else []
        names = [word.partition(b"=")[2] for word in words if word.startswith(b"--raylet_socket_name=")]
        return any(Path(name.decode()).exists() for name in names)

    def of_node(self, address: str) -> list[supervisor.Process]:
        """All processes of a node: Ray's, supervisors, and what came of workers."""
        table = list(supervisor.processes())
        session = self.sessions.get(address, -1)
        mark = f"{self.folder}/n/".encode()
        mine = {each.pid for each in table if each.session == session or self._keeps(each.pid, mark, address)}
        return [each for each in table if each.pid in mine] + supervisor.descendants(mine, table)

    def _keeps(self, pid: int, mark: bytes, address: str) -> bool:
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            return any(word.startswith(mark) and f"/{address}/".encode() in word for word in words)
        return False

    def workers_left(self) -> list[str]:
        """Supervisors and workers of any service on any node, in words."""
        sessions = set(self.sessions.values())
        return [
            f"process {each.pid} of {node}"
            for node in self.nodes
            for each in self.of_node(node)
            if each.session not in sessions
        ]

    def kill_node(self, address: str) -> None:
        """SIGKILL to all of it, the workers included: as when its power fails."""
        until_s = time.monotonic() + PATIENCE_S
        while left := self.of_node(address):
            for each in left:
                supervisor.send_to(each, signal.SIGKILL)
            assert time.monotonic() < until_s, f"of {address} there is still {left}"
            time.sleep(LOOK_S)
        self.sessions.pop(address, None)
        if start := self.starts.pop(address, None):
            start.wait()

    def raylet(self, address: str) -> supervisor.Process:
        """The raylet of a node."""
        return next(each for each in self.of_node(address) if b"/raylet/raylet" in command_of(each.pid))

    def suspend(self, number: int = signal.SIGSTOP) -> None:
        """Suspend or continue all of Ray; workers go on."""
        sessions = set(self.sessions.values())
        for each in supervisor.processes():
            if each.session in sessions:
                supervisor.send_to(each, number)

    def suspend_head(self, number: int = signal.SIGSTOP) -> None:
        """Suspend or continue what Ray knows everything by, and nothing else."""
        gcs = next(one for one in self.of_node(self.head) if b"/gcs/gcs_server" in command_of(one.pid))
        supervisor.send_to(gcs, number)

    def ask(self, do: str, **arguments: Any) -> Any:
        """Have the witness do something in the cluster."""
        if self.witness is None:
            self.witness = subprocess.Popen(
                [sys.executable, WITNESS, self.address],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,
            )
        assert self.witness.stdin is not None
        assert self.witness.stdout is not None
        self.witness.stdin.write(json.dumps([do, arguments]) + "\n")
        self.witness.stdin.flush()
        while line := self.witness.stdout.readline():
            if line.startswith("="):
                found = json.loads(line[1:])
                assert "wrong" not in found, found
                return found["gives"]
        raise AssertionError("the witness has ended")

    def end(self) -> None:
        """End everything; raises where a process is left."""
        if self.witness is not None:
            self.witness.kill()
            self.witness.wait()
            for pipe in (self.witness.stdin, self.witness.stdout):
                if pipe is not None:
                    pipe.close()
        for address in [*self.nodes, self.head]:
            self.kill_node(address)
        shutil.rmtree(self.folder, ignore_errors=True)


def before_others(pid: int) -> None:
    """Let a session that begins have a processor before tests beside it, where the machine allows that.

    Of what a raylet starts, some ends it if it does not begin within 15 s, whatever is set.
    """
    with suppress(OSError):  # of who is not root, and of a kernel that does not group sessions
        os.setpriority(os.PRIO_PROCESS, pid, URGENT)
        Path(f"/proc/{pid}/autogroup").write_text(str(URGENT), encoding="ascii")


def command_of(pid: int) -> bytes:
    """The command line of a process; empty if it is gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


_SHARED: dict[str, Any] = {"cluster": None, "users": 0}


def shared() -> RayCluster:
    """The cluster of this session, begun if need be; whoever asks lets go of it with `release`."""
    if _SHARED["cluster"] is not None:
        _SHARED["cluster"].bring_back_lost_nodes()
    else:
        found = RayCluster()
        try:
            found.begin()
        except BaseException:
            found.end()
            raise
        _SHARED["cluster"] = found
    _SHARED["users"] += 1
    cluster: RayCluster = _SHARED["cluster"]
    return cluster


def release() -> None:
    """The last one ends it."""
    _SHARED["users"] -= 1
    if _SHARED["users"] == 0:
        found, _SHARED["cluster"] = _SHARED["cluster"], None
        found.end()
