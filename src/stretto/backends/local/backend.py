"""Workers as processes of machines that each run an agent; the default, from one machine on.

One task for each agent waits for its next listing, so that `nodes` and `workers` answer at once from what was
last seen. An agent of this machine that is gone is started again; its workers do not notice.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Self
from urllib.parse import quote

import httpx

from stretto.agent import open_files
from stretto.backends.local.agent_client import AgentClient, OwnAgent, RemoteAgent, path_of, state_of, why_of
from stretto.backends.protocol import (
    BackendUnreachable,
    GpuUse,
    IdUsed,
    Line,
    LogPiece,
    LongPoll,
    NodeState,
    NoSuchWorker,
    NotNow,
    StartRefused,
    WorkerStart,
    WorkerState,
)
from stretto.errors import InputError

DOWN_AFTER_S = 30.0  # silence after which a node counts as down; chosen: longer than a restart of its agent
PAUSE_S = 0.1  # before a silent agent is asked again; chosen
ANSWER_S = 10.0  # beyond the time that a log may be waited for; chosen


class LocalBackend:
    """A `Backend` over agents."""

    hands_secrets = True
    fetches_uploads = True

    def __init__(self, agents: Sequence[OwnAgent | RemoteAgent], down_after_s: float = DOWN_AFTER_S) -> None:
        names = [agent.node for agent in agents]
        if not names or len(set(names)) != len(names):
            raise InputError(f"agents must be at least one and their nodes must differ, got {names}")
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=4 * len(names))
        self.client = httpx.AsyncClient(limits=limits, trust_env=False)
        ordered = sorted(agents, key=lambda agent: agent.node)
        self.agents = {agent.node: AgentClient(agent, self.client, down_after_s) for agent in ordered}
        self.down_after_s = down_after_s
        self._epoch = 0
        self.opened = False  # from then on, an agent that is replaced by a wrong one is only silent
        self.poll = LongPoll()
        self.tasks: list[asyncio.Task[None]] = []

    @property
    def epoch(self) -> int:
        """The leader for which the agents are asked."""
        return self._epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._epoch = epoch
        for agent in self.agents.values():
            agent.epoch = epoch

    async def open(self) -> Self:
        """Start or adopt the agents; returns once each has answered, or was silent for too long.

        Raises InputError where an agent is not the one that was asked for.
        """
        self.tasks = [asyncio.create_task(self.follow(agent)) for agent in self.agents.values()]
        until = time.monotonic() + self.down_after_s
        while not all(agent.node.up for agent in self.agents.values()) and time.monotonic() < until:
            for task in self.tasks:
                if task.done():
                    await self.close()
                    task.result()
            await self.changes(self.poll.version, wait_s=0.1)
        self.opened = True
        return self

    async def follow(self, agent: AgentClient) -> None:
        """Keep what is known of one agent up to date, until cancelled."""
        while True:
            try:
                if await agent.listen():
                    self.poll.notify()
                continue
            except InputError as failure:
                if not self.opened:
                    raise
                why = str(failure)
            except NotNow as failure:  # an answer, although none to what was asked
                agent.note_unasked()
                why = str(failure)
            except BackendUnreachable as failure:
                if open_files.are_short(failure):
                    agent.note_unasked()
                why = str(failure)
            except (LookupError, TypeError, ValueError) as failure:
                why = f"what answers is no agent of ours: {failure!r}"
            try:
                agent.launch()
            except InputError as failure:
                if not self.opened:
                    raise
                why = str(failure)
            except OSError as failure:
                why = f"its agent cannot be started: {failure}"
            if agent.note_silence(why):
                self.poll.notify()
            await asyncio.sleep(PAUSE_S)

    async def nodes(self) -> Sequence[NodeState]:
        """Every node, by name."""
        return [agent.node for agent in self.agents.values()]

    def gpu_use(self) -> Mapping[str, Sequence[GpuUse | None]]:
        """How busy GPUs are, by node; nothing of places that are no GPUs."""
        return {name: agent.use for name, agent in self.agents.items() if agent.use}

    async def workers(self) -> Sequence[WorkerState]:
        """Every worker, by id."""
        return sorted(
            (each for agent in self.agents.values() for each in agent.shown()), key=lambda each: each.id
        )

    async def changes(self, after: int, wait_s: float = 20.0) -> int:
        """The newest number, once it is not `after` any more or `wait_s` is over."""
        version = await self.poll.wait(after, wait_s)
        for task in self.tasks if self.opened else ():
            if task.done():
                task.result()  # nobody follows an agent any more: whoever waits is told why
        return version

    async def start(self, worker: WorkerStart) -> WorkerState:
        """Start a worker on its node."""
        agent = self.agents.get(worker.node)
        if agent is None:
            raise StartRefused(
                f"worker {worker.id}: no node {worker.node}, expected one of {list(self.agents)}"
            )
        answer = await agent.ask("PUT", path_of(worker.id), worker.request_with_secrets())
        if answer.status_code == HTTPStatus.GONE:
            raise IdUsed(why_of(answer))
        if answer.status_code != 200:
            raise StartRefused(why_of(answer))
        reply = agent.said(answer)
        if agent.learn(reply):
            self.poll.notify()
        return agent.workers.get(worker.id) or state_of(worker.node, reply["worker"])

    async def stop(self, worker_id: str, grace_s: float) -> None:
        """SIGTERM, and SIGKILL after the grace period."""
        await self.order(worker_id, "/stop", {"grace_s": grace_s})

    async def signal(self, worker_id: str, signal: int) -> None:
        """Send a signal to a worker's process group."""
        await self.order(worker_id, "/signal", {"signal": signal})

    async def order(self, worker_id: str, action: str, body: dict[str, float]) -> None:
        """Have the agent of a worker do something to it."""
        agent = self.agent_of(worker_id)
        answer = await agent.ask("POST", path_of(worker_id, action), body)
        if answer.status_code == 404:
            raise NoSuchWorker(why_of(answer))
        if answer.status_code != 200:
            raise InputError(why_of(answer))
        if agent.learn(agent.said(answer)):
            self.poll.notify()

    async def reach(self, worker_id: str) -> Line:
        """A line to a new program beside a worker."""
        return await self.agent_of(worker_id).line_to(worker_id)

    async def hand_over(self, nodes: Sequence[str], to: str | None) -> None:
        """Tell the agents of nodes whose they are; while that is a lender, an agent starts no worker.

        Raises BackendUnreachable, also while a worker lives on a node that is to go to a lender.
        """
        for name in nodes:
            if (agent := self.agents.get(name)) is None:
                continue  # a node that this backend has no more is nobody's to give
            answer = await agent.ask("PUT", "/v1/node/lender", {"lender": to or ""})
            if answer.status_code == HTTPStatus.NOT_FOUND:
                older = "its agent is of an older version, which knows no lenders: end it, its workers go on"
                raise BackendUnreachable(f"node {name}: {older}")
            if answer.status_code != 200:
                raise BackendUnreachable(f"node {name}: {why_of(answer)}")

    def agent_of(self, worker_id: str) -> AgentClient:
        """The agent that has a worker; raises NoSuchWorker, or BackendUnreachable while that is not known."""
        for agent in self.agents.values():
            if worker_id in agent.workers:
                return agent
        self.check_all_up(worker_id)
        raise NoSuchWorker(f"no worker {worker_id} on any node")

    def check_all_up(self, worker_id: str) -> None:
        """Raise BackendUnreachable if a worker may be on a node that does not answer."""
        for agent in self.agents.values():
            if not agent.node.up:
                raise BackendUnreachable(
                    f"worker {worker_id} may be on node {agent.node.name}: {agent.node.why}"
                )

    async def log(
        self, worker_id: str, offset: int = 0, limit: int = 1 << 20, wait_s: float = 0.0
    ) -> LogPiece:
        """A piece of a log, from the node that has it."""
        having = [agent for agent in self.agents.values() if worker_id in agent.workers]
        for agent in having or [agent for agent in self.agents.values() if agent.node.up]:
            answer = await agent.ask(
                "GET",
                path_of(worker_id, "/log"),
                answer_s=wait_s + ANSWER_S,
                offset=offset,
                limit=limit,
                wait_s=wait_s,
            )
            if answer.status_code == 200:
                head = answer.headers
                begin, next_ = int(head["Stretto-Offset"]), int(head["Stretto-Next"])
                return LogPiece(answer.content, begin, next_, head["Stretto-Complete"] == "1")
            if answer.status_code != 404:
                raise InputError(why_of(answer))
        self.check_all_up(worker_id)
        raise NoSuchWorker(f"no worker {worker_id} on any node")

    async def forget(self, worker_id: str) -> None:
        """List an ended worker no more."""
        for agent in self.agents.values():
            if worker_id in agent.workers:
                answer = await agent.ask("DELETE", path_of(worker_id))
                if answer.status_code == 200 and agent.unlearn(worker_id, agent.said(answer)):
                    self.poll.notify()

    async def delete_logs(self, job: str) -> None:
        """Remove what is left of a job's forgotten workers on all nodes."""
        for agent in self.agents.values():
            await agent.ask("DELETE", f"/v1/jobs/{quote(job, safe='')}/logs")

    async def close(self) -> None:
        """Let go of connections."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.tasks = []
        await self.client.aclose()
