"""The service's end of the way to its gateway: started, asked, listened to, and started again when gone."""

import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stretto.live.agent.node import MAX_LOG_BYTES
from stretto.live.backends.protocol import (
    BackendUnreachable,
    IdUsed,
    NoSuchWorker,
    NotNow,
    StaleLeader,
    StartRefused,
)
from stretto.model.errors import InputError

CONNECT_S = 45.0  # from the start of a gateway to its connection; Ray takes seconds on a busy machine; chosen
SILENCE_S = 20.0  # of a gateway that says something every second, before it is started again; chosen
PAUSE_S = 1.0  # between attempts
LONGEST_LINE_BYTES = 64 << 20
FAILURES = {
    each.__name__: each
    for each in (BackendUnreachable, IdUsed, InputError, NoSuchWorker, NotNow, StartRefused)
}


@dataclass(frozen=True)
class Call:
    """How a gateway is started."""

    address: str
    service_id: str
    log: Path  # what it prints
    down_after_s: float
    lost_after_s: float
    grow: tuple[str, ...] = ()  # nodes that an autoscaler may add; (): as its configuration says
    max_log_bytes: int = MAX_LOG_BYTES  # that the logs of a job take on each node; 0: any amount

    def command(self, file: int) -> list[str]:
        """Its command line, with the file that leads back to us."""
        return [
            *(sys.executable, "-P", "-m", "stretto.live.backends.ray.gateway"),
            *("--address", self.address, "--service-id", self.service_id, "--socket", str(file)),
            *("--down-after-s", str(self.down_after_s), "--lost-after-s", str(self.lost_after_s)),
            *("--max-log-bytes", str(self.max_log_bytes)),
            *("--grow", *self.grow),
        ]


class Gateway:
    """One gateway process after the other."""

    def __init__(self, call: Call, heard: Callable[[dict[str, Any]], None]) -> None:
        self.call = call
        self.heard = heard  # is given what the gateway sees
        self.first: Callable[[], dict[str, Any]] = dict  # what a new gateway is told at once
        self.heard_s = 0.0  # when it last said anything
        self.connected = asyncio.Event()
        self.why = "is being started"
        self.refused = ""  # why the first one could not be used
        self.log_began = call.log.stat().st_size if call.log.exists() else 0  # where its output begins
        self.last_id = 0
        self.waiting: dict[int, asyncio.Future[Any]] = {}
        self.writer: asyncio.StreamWriter | None = None
        self.process: asyncio.subprocess.Process | None = None

    async def keep(self) -> None:
        """Have a gateway, until cancelled."""
        while True:
            try:
                await self.live()
            except (OSError, ValueError, TimeoutError, asyncio.IncompleteReadError) as failure:
                self.why = f"its gateway to Ray ended: {failure or type(failure).__name__}"
            finally:
                self.connected.clear()
                for answer in self.waiting.values():
                    if not answer.done():
                        answer.set_exception(BackendUnreachable(self.why))
                self.waiting.clear()
                await self.end()
            await asyncio.sleep(PAUSE_S)

    async def live(self) -> None:
        """One gateway, from its start to its end."""
        ours, theirs = socket.socketpair()
        self.call.log.parent.mkdir(parents=True, exist_ok=True)
        with theirs, self.call.log.open("ab") as log:
            self.log_began = log.tell()
            self.process = await asyncio.create_subprocess_exec(
                *self.call.command(theirs.fileno()),
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        reader, self.writer = await asyncio.open_unix_connection(sock=ours, limit=LONGEST_LINE_BYTES)
        self.writer.write(json.dumps(self.first()).encode() + b"\n")
        patience_s = CONNECT_S
        while line := await asyncio.wait_for(reader.readline(), patience_s):
            patience_s, self.heard_s = SILENCE_S, time.monotonic()
            self.take(json.loads(line))
        self.why = self.refused or f"its gateway to Ray ended; see {self.call.log}"

    def take(self, said: dict[str, Any]) -> None:
        """One line of the gateway."""
        if "id" in said:
            answer = self.waiting.pop(said["id"], None)
            if answer is None or answer.done():
                return
            if "epoch" in said:
                answer.set_exception(StaleLeader(said["why"], said["epoch"]))
            elif kind := said.get("fails"):
                answer.set_exception(FAILURES.get(kind, BackendUnreachable)(said["why"]))
            else:
                answer.set_result(said["gives"])
        elif why := said.get("refused"):
            self.refused = self.why = why
        else:
            if "hello" in said:
                self.refused = ""
                self.connected.set()
            self.heard(said)

    async def ask(self, do: str, within_s: float, /, **arguments: Any) -> Any:
        """Give an order; raises BackendUnreachable, and as the order does."""
        if not self.connected.is_set() or self.writer is None:
            raise BackendUnreachable(self.why)
        self.last_id = number = self.last_id + 1
        answer = self.waiting[number] = asyncio.get_running_loop().create_future()
        order = {"id": number, "do": do, "with": arguments}
        try:
            self.writer.write(json.dumps(order).encode() + b"\n")
            return await asyncio.wait_for(answer, within_s)
        except TimeoutError:
            raise BackendUnreachable(f"Ray did not answer within {within_s:g} s") from None
        except OSError as failure:
            raise BackendUnreachable(f"its gateway to Ray ended: {failure}") from failure
        finally:
            self.waiting.pop(number, None)

    def is_turned_away(self) -> bool:
        """Whether Ray has said that our token is wrong, as it does for long before it gives up."""
        with suppress(OSError), self.call.log.open("rb") as log:
            log.seek(self.log_began)
            return b"unauthenticated" in log.read(1 << 16).lower()
        return False

    async def end(self) -> None:
        """End the present gateway."""
        if self.writer is not None:
            self.writer.close()
            self.writer = None
        if self.process is not None and self.process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGKILL)
            await self.process.wait()
        self.process = None
