"""The worker's channel to the service: generations come, reports go (HTTP and JSON).

A generation says which workers train together, in the order of ranks. Each request is repeated until it is
answered.
"""

import json
import logging
import queue
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import isfinite
from typing import Any

import torch

from stretto.sdk.settings import Batch, Bounds, RequestedBatch
from stretto.sdk.step_profiler import StepTimes
from stretto.sdk.training import Progress


@dataclass(frozen=True, slots=True)
class Member:
    """One worker of a generation."""

    id: str
    node: str = ""
    address: str = "127.0.0.1"
    gpus: int = 1


@dataclass(frozen=True, slots=True)
class Generation:
    """One document of the channel."""

    number: int
    members: tuple[Member, ...] = ()
    store: str | None = None  # host:port
    source: str | None = None  # the survivor that newcomers take the state from
    batch: RequestedBatch | None = None
    until_s: float | None = None  # seconds left to answer
    leave: bool = False
    secret: str = field(default="", repr=False)  # that its members alone know; "" = the service tells none

    @property
    def world(self) -> int:
        """How many train together."""
        return len(self.members)

    @property
    def nodes(self) -> int:
        """Distinct nodes."""
        return len({member.node for member in self.members})

    @property
    def gpus(self) -> int:
        """Of all members."""
        return sum(member.gpus for member in self.members)

    def rank_of(self, worker: str) -> int | None:
        """Its rank, or None where it is not a member."""
        return next((rank for rank, member in enumerate(self.members) if member.id == worker), None)


def read_generation(document: Mapping[str, Any]) -> Generation:
    """From the JSON of the channel; keys that are not known are for later versions and ignored."""
    batch = document.get("batch")
    return Generation(
        number=int(document["generation"]),
        members=tuple(read_member(each) for each in document.get("workers") or ()),
        store=document.get("store"),
        source=document.get("source"),
        batch=read_batch(batch) if batch else None,
        until_s=document.get("until_s"),
        leave=bool(document.get("leave")),
        secret=str(document.get("secret") or ""),
    )


def read_batch(document: Mapping[str, Any]) -> RequestedBatch:
    """That of a generation; services before local batches send no `by_worker`."""
    by_worker = tuple(int(samples) for samples in document.get("by_worker") or ())
    return RequestedBatch(int(document["total"]), document.get("accumulation"), by_worker)


def as_document(generation: Generation) -> dict[str, Any]:
    """What `read_generation` reads, without the secret, which each member has from the service."""
    return {
        "generation": generation.number,
        "workers": [asdict(member) for member in generation.members],
        "store": generation.store,
        "source": generation.source,
        "batch": asdict(generation.batch) if generation.batch else None,
        "until_s": generation.until_s,
        "leave": generation.leave,
    }


def read_member(document: Mapping[str, Any]) -> Member:
    """One worker of the document; `gpus` is their number or a list of them."""
    gpus = document.get("gpus", 1)
    return Member(
        id=str(document["id"]),
        node=str(document.get("node") or ""),
        address=str(document.get("address") or "127.0.0.1"),
        gpus=len(gpus) if isinstance(gpus, (list, tuple)) else int(gpus),
    )


def fixed(world: int, local_world: int) -> Generation:
    """The only generation of a run without a service: `world` members, `local_world` on each node."""
    return Generation(
        number=0, members=tuple(Member(str(rank), str(rank // max(1, local_world))) for rank in range(world))
    )


# ── the channel ─────────────────────────────────────────────────────────────────────────────────────────────


log = logging.getLogger("stretto.sdk")

FIRST_PAUSE_S = 0.2  # chosen
LONGEST_PAUSE_S = 15.0  # chosen: a service that comes back is found within that time
REQUEST_TIMEOUT_S = 10.0  # beyond what a long poll waits
MOST_WAITING = 256  # messages kept while the service is away; reports are the first to go


class NoLongerWanted(Exception):
    """The service wants no such worker any more (410)."""


class Channel:
    """Requests of one worker. `post` returns at once; a thread sends, in order, again and again."""

    def __init__(self, url: str, token: str, worker: str, authorities: str = "") -> None:
        """authorities: the certificates that the service is verified by, in PEM; "": the system's."""
        self.worker, self.url = worker, url
        self._opener = opener_for(url, authorities)
        self._base = f"{url}/api/v1/worker"
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._waiting: queue.Queue[tuple[str, bytes]] = queue.Queue()
        self._closing = threading.Event()
        self._sender = threading.Thread(target=self._send_all, name="stretto-sender", daemon=True)
        self._sender.start()

    def generation(self, after: int, wait_s: float, with_store: bool) -> Generation | None:
        """The newest one after that number, None if none came in `wait_s`.

        Raises `NoLongerWanted` on 410, OSError where the service did not answer as it should.
        """
        query = {"worker": self.worker, "after": after, "wait_s": f"{wait_s:g}"}
        if with_store:
            query["store"] = 1
        body = self._ask(f"/generation?{urllib.parse.urlencode(query)}", None, wait_s + REQUEST_TIMEOUT_S)
        if not body:
            return None
        try:
            return read_generation(json.loads(body))
        except (ValueError, KeyError, TypeError) as wrong:
            raise OSError(f"the service sent no generation: {wrong!r}") from wrong

    def post(self, what: str, **content: Any) -> None:
        """Send sooner or later; what is not finite or None is left out."""
        body = json.dumps(finite({"worker": self.worker, **content}), allow_nan=False).encode()
        if what == "report" and self._waiting.qsize() >= MOST_WAITING:
            return
        self._waiting.put((what, body))

    def close(self, within_s: float) -> None:
        """Give what is still unsent so much time, then end the sender."""
        until_s = time.monotonic() + within_s
        while self._waiting.unfinished_tasks and time.monotonic() < until_s:
            time.sleep(0.005)
        self._closing.set()

    def _send_all(self) -> None:
        while not self._closing.is_set():
            try:
                what, body = self._waiting.get(timeout=0.5)
            except queue.Empty:
                continue
            self._send(what, body)
            self._waiting.task_done()

    def _send(self, what: str, body: bytes) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._closing.is_set():
            try:
                self._ask(f"/{what}", body, REQUEST_TIMEOUT_S)
            except NoLongerWanted:
                return
            except urllib.error.HTTPError as answer:
                if 400 <= answer.code < 500 and answer.code not in (408, 425, 429):
                    log.warning("the service refused %s: %s %s", what, answer.code, body.decode())
                    return
            except OSError:
                pass
            else:
                return
            self._closing.wait(pause_s)
            pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)

    def _ask(self, path: str, body: bytes | None, timeout_s: float) -> bytes:
        request = urllib.request.Request(self._base + path, data=body, headers=self._headers)
        try:
            with self._opener.open(request, timeout=timeout_s) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as answer:
            answer.close()
            if answer.code == 410:
                raise NoLongerWanted from None
            raise
        except (OSError, ValueError) as failed:
            raise OSError(str(failed)) from failed
        except Exception as broken:  # http.client's errors of a connection cut in the middle are no OSErrors
            raise OSError(repr(broken)) from broken


class Reporter:
    """Reports of one worker; without a channel there are none."""

    def __init__(self, channel: Channel | None, every_s: float) -> None:
        self._channel, self._every_s = channel, every_s
        self._sent_s = time.monotonic()
        self._sent_samples: tuple[float, int] | None = None  # when, and how many samples there were
        self.loss: torch.Tensor | None = None  # of the last micro-batch

    @property
    def is_due(self) -> bool:
        """Whether the last one was long enough ago."""
        return self._channel is not None and time.monotonic() - self._sent_s >= self._every_s

    def send(
        self, progress: Progress, times: StepTimes, batch: Batch, bounds: Bounds, epochs: int | None
    ) -> None:
        """Tell how things stand."""
        if self._channel is None:
            return
        self._sent_s = time.monotonic()
        # The names are the service's. What is not known yet is NaN or None, which `post` leaves out.
        content: dict[str, Any] = {
            # how far it is
            "step": progress.step,
            "epoch": progress.epoch,
            "samples": progress.samples,
            "dataset_samples": progress.dataset_samples,
            "progress_steps": progress.progress_steps,
            # how fast, and how noisy its gradients are: from these the service foresees other sizes
            "points": times.points(),
            "grad_sqr": progress.noise.sqr,
            "grad_var": progress.noise.var,
            "init_batch": bounds.initial,
            "max_batch": bounds.largest,
            "max_local": bounds.largest_local,
            # what people look at
            "loss": None if self.loss is None else float(self.loss),
            "metric": progress.newest_metric,
            "metrics": progress.found or None,
            "epoch_metrics": progress.metrics or None,
            "batch": batch.total,
            "left_s": self._left_s(progress, epochs),
        }
        self._channel.post("report", **content)

    def _left_s(self, progress: Progress, epochs: int | None) -> float | None:
        """From the speed since the last report, evaluation included."""
        now_s, before = time.monotonic(), self._sent_samples
        self._sent_samples = now_s, progress.samples
        if epochs is None or before is None or progress.samples <= before[1]:
            return None
        left = (epochs - progress.epoch) * progress.dataset_samples - progress.taken
        return left * (now_s - before[0]) / (progress.samples - before[1])


def opener_for(url: str, authorities: str) -> urllib.request.OpenerDirector:
    """What opens a URL, past all proxies. Raises SSLError for authorities that are no certificates."""
    # A proxy for the outer world has no business between a worker and its service.
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if url.startswith("https://"):  # to read the system's authorities takes a while
        context = ssl.create_default_context(cadata=authorities or None)
        handlers.append(urllib.request.HTTPSHandler(context=context))
    return urllib.request.build_opener(*handlers)


def finite(value: Any) -> Any:
    """The same without what is None, NaN or infinite, at any depth; a list with such a number goes whole."""
    if isinstance(value, Mapping):
        entries = {str(key): finite(each) for key, each in value.items()}
        return {key: each for key, each in entries.items() if each is not None}
    if isinstance(value, (list, tuple)):
        rows = [finite(each) for each in value]
        if any(isinstance(each, (list, tuple)) for each in value):
            return [row for row in rows if row is not None]  # a table loses the row, not all
        return None if any(row is None for row in rows) else rows
    if isinstance(value, bool) or value is None or isinstance(value, (str, int)):
        return value
    number = float(value)
    return number if isfinite(number) else None
