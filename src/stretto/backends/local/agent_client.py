"""One agent as a backend sees it: where it is, what it last said, and how it is asked."""

import asyncio
import fcntl
import logging
import os
import re
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from stretto.agent import presence, run_directory
from stretto.agent.inherited_env import inherited
from stretto.agent.node import MAX_LOG_BYTES
from stretto.agent.server import STALE_STATUS
from stretto.backends.protocol import (
    BackendUnreachable,
    GpuUse,
    Line,
    NodeState,
    NoSuchWorker,
    NotNow,
    StaleLeader,
    WorkerState,
)
from stretto.errors import InputError

log = logging.getLogger(__name__)

ANSWER_S = 10.0  # the longest that an agent may think about what it can do at once; chosen
END_AFTER_S = 600.0  # of an agent of our own that nobody needs; chosen: longer than a service is down
REFUSED_STATUS = 2  # of an agent that cannot start as it was asked to
ADDRESS: run_directory.Shape = {"url": run_directory.is_text, "pid": run_directory.is_count}
SHOWN = 3  # workers that are set aside, by name
LISTEN_S = 20.0  # for which an agent may wait for a change; chosen
USE_EVERY_S = 5.0  # the same where it says how busy its GPUs are; chosen
RELAUNCH_S = 1.0  # between attempts to start an agent of our own; chosen


@dataclass(frozen=True)
class OwnAgent:
    """An agent of this machine that we start if none runs, with its state directory."""

    node: str
    state: Path
    gpus: int | None = None  # None: the real ones
    gpu_type: str = ""
    listen: str = "127.0.0.1:0"
    end_after_s: float = END_AFTER_S  # once nobody asks and no worker lives; 0: never
    run_as: bool = False  # workers run as other users; for root
    pass_env: tuple[str, ...] = ()  # names and patterns of our environment that workers find beside the usual
    max_log_bytes: int = MAX_LOG_BYTES  # that the logs of a job take there; 0: any amount


@dataclass(frozen=True)
class RemoteAgent:
    """An agent that is started elsewhere."""

    node: str
    url: str
    token: str


@dataclass
class AgentClient:
    """What is known of one agent and its workers, and the way to ask it."""

    agent: OwnAgent | RemoteAgent
    client: httpx.AsyncClient
    down_after_s: float
    node: NodeState = field(init=False)
    workers: dict[str, WorkerState] = field(default_factory=dict)  # that are not forgotten, by id
    instance: str = ""  # the life of the agent in which `version` counts
    version: int = 0  # of the listing that `workers` came from
    floor: tuple[str, int] = ("", 0)  # instance, version: its older listings lack what was asked of it since
    heard_s: float = field(default_factory=time.monotonic)  # when it last answered
    launched_s: float = float("-inf")
    child: int = 0  # an agent that we started, to be waited for
    epoch: int = 0  # of the leader that asks; 0: none does
    use: tuple[GpuUse | None, ...] = ()  # of its GPUs; (): not known

    def __post_init__(self) -> None:
        """Begin without having heard anything."""
        gpus = self.agent.gpus if isinstance(self.agent, OwnAgent) else None
        gpu_type = self.agent.gpu_type if isinstance(self.agent, OwnAgent) else ""
        self.node = NodeState(self.agent.node, gpu_type, gpus or 0, up=False, why="has not answered yet")

    async def ask(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        answer_s: float | None = None,
        **query: Any,
    ) -> httpx.Response:
        """An answer below 500; raises BackendUnreachable, StaleLeader.

        An agent that is to be given up soon is not waited for any longer.
        """
        if answer_s is None:
            answer_s = min(ANSWER_S, 2 * self.down_after_s)
        try:
            url, token = self.address()
            answer = await self.client.request(
                method,
                url + path,
                json=body,
                params=query,
                headers={"Authorization": f"Bearer {token}", "Stretto-Epoch": str(self.epoch)},
                timeout=answer_s,
            )
        except (httpx.RequestError, OSError) as failure:  # also where this process may open no more files
            message = str(failure) or type(failure).__name__
            raise BackendUnreachable(f"node {self.agent.node}: {message}") from failure
        if answer.status_code in (423, 507):
            raise NotNow(why_of(answer))
        if answer.status_code == STALE_STATUS:
            raise StaleLeader(why_of(answer), int(self.said(answer)["epoch"]))
        if answer.status_code == 401 or answer.status_code >= 500:
            raise BackendUnreachable(f"node {self.agent.node}: {why_of(answer)}")
        return answer

    async def line_to(self, worker_id: str) -> Line:
        """A connection that the agent has handed to a program beside a worker.

        Raises BackendUnreachable, NoSuchWorker, InputError.
        """
        url, token = self.address()
        parts = urlsplit(url)
        try:
            async with asyncio.timeout(ANSWER_S):
                reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
                head = [f"POST {path_of(worker_id, '/reach')} HTTP/1.1", f"Host: {parts.netloc}"]
                head += [f"Authorization: Bearer {token}", f"Stretto-Epoch: {self.epoch}", "", ""]
                writer.write("\r\n".join(head).encode())
                answer = await reader.readuntil(b"\r\n\r\n")
                status = int(answer.split(None, 2)[1])
                if status == HTTPStatus.SWITCHING_PROTOCOLS:
                    return StreamLine(reader, writer)
                length = re.search(rb"(?i)content-length: *(\d+)", answer)
                refusal = httpx.Response(
                    status, content=await reader.readexactly(int(length[1] if length else 0))
                )
                writer.close()
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as failure:
            raise BackendUnreachable(f"node {self.agent.node}: {failure or 'no answer in time'}") from failure
        why = why_of(refusal)
        if status == HTTPStatus.NOT_FOUND and why.startswith("no POST"):
            why = f"node {self.agent.node}: its agent is of an older version, which reaches no workers"
            raise InputError(f"{why}: end it, its workers go on")
        if status == HTTPStatus.NOT_FOUND:
            raise NoSuchWorker(why)
        if status == HTTPStatus.CONFLICT:
            raise InputError(why)
        raise BackendUnreachable(f"node {self.agent.node}: {why}")

    def address(self) -> tuple[str, str]:
        """URL and token; raises BackendUnreachable where an agent of our own does not run."""
        if isinstance(self.agent, RemoteAgent):
            return self.agent.url.rstrip("/"), self.agent.token
        if not is_taken(self.agent.state):  # or the token would go to whoever has its port now
            last_lines = last_words(self.agent)
            raise BackendUnreachable(f"node {self.agent.node}: its agent does not run. {last_lines}".strip())
        try:
            address = run_directory.read_shaped(self.agent.state / presence.ADDRESS, ADDRESS)
            token = run_directory.read_file(self.agent.state / presence.TOKEN)
        except (OSError, run_directory.Damaged) as failure:  # its agent will notice, and write it anew
            raise BackendUnreachable(f"node {self.agent.node}: {failure}") from failure
        if address is None or not token or not presence.WHOLE_TOKEN.fullmatch(token.strip()):
            raise BackendUnreachable(f"node {self.agent.node}: its agent has no address yet")
        return str(address["url"]), token.decode("ascii").strip()

    def pid(self) -> int:
        """The process of an agent of our own; 0: unknown."""
        assert isinstance(self.agent, OwnAgent)
        with suppress(OSError, run_directory.Damaged):
            return int(
                (run_directory.read_shaped(self.agent.state / presence.ADDRESS, ADDRESS) or {"pid": 0})["pid"]
            )
        return 0

    async def listen(self) -> bool:
        """Wait for the next listing; whether anything changed. Raises BackendUnreachable, or InputError."""
        most_s = LISTEN_S if not self.use else USE_EVERY_S
        wait_s = min(most_s, self.down_after_s / 2) if self.node.up else 0.0
        answer_s = wait_s + min(ANSWER_S, self.down_after_s / 2)
        after = f"{self.instance}:{self.version}"
        answer = await self.ask("GET", "/v1/workers", answer_s=answer_s, after=after, wait_s=wait_s)
        listing = self.said(answer)
        new = listing["instance"] != self.instance
        node = await self.described() if new or not self.node.up else self.node
        node = replace(node, remark=remark_of(listing.get("damage", ())), others=listing.get("others", 0))
        if node.remark and node.remark != self.node.remark:
            log.warning("node %s: %s", node.name, node.remark)
        self.heard_s = time.monotonic()
        self.use = tuple(None if each is None else GpuUse(**each) for each in listing.get("use", ()))
        instance, version = self.floor
        if listing["instance"] == instance and listing["version"] < version:
            return False
        workers = {each["id"]: state_of(self.agent.node, each) for each in listing["workers"]}
        changed = (node, workers) != (self.node, self.workers)
        self.node, self.workers = node, workers
        self.instance, self.version = listing["instance"], listing["version"]
        self.floor = (self.instance, self.version)
        return changed

    async def described(self) -> NodeState:
        """The node as its agent describes it; raises BackendUnreachable, or InputError for another one."""
        answer = await self.ask("GET", "/v1/node")
        description = self.said(answer)
        agent = self.agent
        if description["name"] != agent.node:
            raise InputError(
                f"agent at {self.address()[0]}: node must be {agent.node!r}, got {description['name']!r}"
            )
        if isinstance(agent, OwnAgent):
            expected: dict[str, Any] = {
                "gpus": agent.gpus or description["gpus"],
                "gpu_type": agent.gpu_type or description["gpu_type"],
                "pass_env": list(agent.pass_env),
                "max_log_bytes": agent.max_log_bytes,
                "run_as": agent.run_as,
            }
            description.setdefault("run_as", False)  # an agent of an older version
            for name, want in expected.items():
                if description.get(name, want) != want:  # an agent of an older version may not know of it
                    raise InputError(
                        f"the agent of {agent.node} that runs in {agent.state} has {name} "
                        f"{description[name]!r}, expected {want!r}; "
                        f"end it first, as process {self.pid()}: its workers go on"
                    )
        return NodeState(
            name=description["name"],
            gpu_type=description["gpu_type"],
            gpus=description["gpus"],
            cpus=description["cpus"],
            memory_gb=description["memory_gb"],
            address=urlsplit(self.address()[0]).hostname or "",
        )

    def said(self, answer: httpx.Response) -> dict[str, Any]:
        """The object of an answer; raises BackendUnreachable if another process answered."""
        try:
            document = answer.json()
        except ValueError:
            document = None
        if not isinstance(document, dict) or (answer.status_code == 200 and "why" in document):
            raise BackendUnreachable(f"node {self.agent.node}: what answers is no agent of ours")
        return document

    def learn(self, reply: dict[str, Any]) -> bool:
        """Take in one worker from the answer to a command; whether that is news."""
        worker = state_of(self.agent.node, reply["worker"])
        if reply["instance"] == self.instance and reply["version"] < self.version:
            return False
        self._lift_floor(reply)
        changed = self.workers.get(worker.id) != worker
        self.workers[worker.id] = worker
        return changed

    def unlearn(self, worker_id: str, said: dict[str, Any]) -> bool:
        """Take in that a worker is forgotten; whether that is news."""
        self._lift_floor(said)
        return self.workers.pop(worker_id, None) is not None

    def _lift_floor(self, said: dict[str, Any]) -> None:
        """No listing from before this answer counts, be it the first of an agent that is new."""
        instance, version = self.floor
        lower = version if said["instance"] == instance else 0
        self.floor = (said["instance"], max(lower, said["version"]))

    def note_silence(self, why: str) -> bool:
        """Take in that the agent did not answer; whether the node counts as down from now on."""
        if self.node.up and time.monotonic() - self.heard_s < self.down_after_s:
            return False
        known, self.node = self.node, replace(self.node, up=False, why=why)
        self.use = ()
        return self.node != known

    def note_unasked(self) -> None:
        """Take in that we could not even ask: silence counts from the last chance to answer."""
        self.heard_s = time.monotonic()

    def shown(self) -> list[WorkerState]:
        """Workers as they are known: of a node that is down, not whether they still run."""
        if self.node.up:
            return list(self.workers.values())
        return [replace(each, phase="unknown") if each.holds_gpus else each for each in self.workers.values()]

    def launch(self) -> None:
        """Start an agent of our own if none has its state directory.

        Raises InputError where none has ever come up there, and it says that it cannot as it was asked to.
        """
        if self.child:
            ended = 0
            with suppress(ChildProcessError):
                pid, ended = os.waitpid(self.child, os.WNOHANG)
                if pid == 0:
                    return  # still coming up, or ending
            self.child = 0
            refused = os.waitstatus_to_exitcode(ended) == REFUSED_STATUS
            if refused and isinstance(self.agent, OwnAgent) and not self.pid():
                raise InputError(last_words(self.agent))
        due = time.monotonic() - self.launched_s > RELAUNCH_S
        if isinstance(self.agent, OwnAgent) and due and not is_taken(self.agent.state):
            self.launched_s = time.monotonic()
            self.child = start_agent(self.agent)


@dataclass
class StreamLine:
    """A `Line` over a connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def readexactly(self, n: int, /) -> bytes:
        """So many bytes; raises EOFError, OSError."""
        return await self.reader.readexactly(n)

    def write(self, data: bytes, /) -> None:
        """Leave bytes to be sent."""
        self.writer.write(data)

    async def drain(self) -> None:
        """Wait until there is room for more; raises OSError."""
        await self.writer.drain()

    def close(self) -> None:
        """Let go of it."""
        self.writer.close()


def state_of(node: str, said: dict[str, Any]) -> WorkerState:
    """A worker as its agent shows it."""
    known = {name: value for name, value in said.items() if name in WorkerState.__dataclass_fields__}
    return WorkerState(**{**known, "node": node, "gpus": tuple(said["gpus"])})


def remark_of(damage: Sequence[str]) -> str:
    """What is said of a node some of whose workers have damaged files: of few which, of more how many."""
    if not damage:
        return ""
    more = f" and {len(damage) - SHOWN} more" if len(damage) > SHOWN else ""
    return f"set aside {', '.join(damage[:SHOWN])}{more}"


def path_of(worker_id: str, action: str = "") -> str:
    """Where an agent answers about a worker."""
    return f"/v1/workers/{quote(worker_id, safe='')}{action}"


def why_of(answer: httpx.Response) -> str:
    """What an agent says of a refusal."""
    try:
        return str(answer.json()["why"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP status {answer.status_code}"


def is_taken(state: Path) -> bool:
    """Whether an agent has a state directory, answering or not."""
    try:
        lock = os.open(state / "agent.lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def start_agent(agent: OwnAgent) -> int:
    """Start an agent that outlives this process; its process id."""
    agent.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    command = [sys.executable, "-P", "-m", "stretto.agent", "--state", str(agent.state.resolve())]
    command += ["--node", agent.node, "--listen", agent.listen, "--gpu-type", agent.gpu_type]
    command += ["--end-after-s", str(agent.end_after_s)]
    command += [f"--pass-env={name}" for name in agent.pass_env]
    command += ["--max-log-bytes", str(agent.max_log_bytes)]
    command += ["--run-as"] if agent.run_as else []
    if agent.gpus is not None:
        command += ["--gpus", str(agent.gpus)]
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    return os.posix_spawn(
        sys.executable,
        command,
        inherited(os.environ, agent.pass_env),
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(agent.state / "agent.log"), append, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        setsigmask=[],
    )


def last_words(agent: OwnAgent) -> str:
    """The last line that an agent of our own printed."""
    with suppress(OSError):
        lines = (agent.state / "agent.log").read_text(encoding="utf-8", errors="replace").splitlines()
        return next((line for line in reversed(lines) if line.strip()), "")
    return ""
