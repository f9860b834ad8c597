"""Forming and leaving process groups.

Gradients go over NCCL where the model is on GPUs; everything else is small and goes over gloo.
"""

import contextlib
import json
import os
import sys
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.distributed_c10d import _set_pg_timeout

from stretto.sdk.meeting_place import check_members

FORM_TIMEOUT = timedelta(seconds=60)  # chosen: everybody has said a moment ago that it is here
LINGER_S = 10.0
LET_GO_S = 0.002  # chosen: with a quarter of it 670 of 670 groups were left, without it about 200 of 201
HOOKS: list[Any] = []  # sys.excepthook before and after forming: torch adds one for each group, and keeps all


def form(store: Store, rank: int, world: int, on_gpu: bool, timeout: timedelta, secret: str = "") -> None:
    """Become rank `rank` of the default group; alone, there is none.

    Raises if somebody does not come, or comes who does not know the secret of the generation. `timeout` is
    for the collectives of the group.
    """
    if world == 1:
        return
    backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
    before = sys.excepthook
    dist.init_process_group(
        backend, store=PrefixStore("group", store), rank=rank, world_size=world, timeout=FORM_TIMEOUT
    )
    HOOKS[:] = [before, sys.excepthook]
    if secret:
        check_members(secret, rank, world)
    _set_pg_timeout(timeout)


def use_loopback(address: str) -> None:
    """Gloo looks up the host's name to find its interface; on loopback, the name may lead elsewhere."""
    if address.startswith("127.") and sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


def leave() -> None:
    """Destroy the default group, if there is one.

    After a collective call gloo's thread lets go of the tensor, for which it takes Python's lock while it
    holds one of the group's. Whoever destroys the group holds Python's and takes the group's: were that at
    the same moment, both would wait for ever (PyTorch's issue 56297). So the thread is left to it first.
    """
    if dist.is_initialized():
        time.sleep(LET_GO_S)
        dist.destroy_process_group()
    if HOOKS and sys.excepthook is HOOKS[1]:
        sys.excepthook = HOOKS[0]
    HOOKS.clear()


def part(store: Store, occasion: str, world: int, wait: bool) -> bool:
    """Say that this rank is through with the group, and wait until all are; whether they were in time.

    A process that ends while a peer still reads what it sent can reset the connection under it.
    """
    with contextlib.suppress(Exception):  # whoever hosts the store may be gone already: then all are through
        through = store.add(f"through/{occasion}", 1)
        until_s = time.monotonic() + LINGER_S
        while wait and through < world and time.monotonic() < until_s:
            time.sleep(0.005)
            through = store.add(f"through/{occasion}", 0)
        return through >= world
    return True


def tell(value: Any, source: int) -> Any:
    """The object that rank `source` has, on every rank. Over gloo, pickled: all ranks must be members."""
    box = [value]
    if dist.is_initialized():
        dist.broadcast_object_list(box, src=source, device=torch.device("cpu"))
    return box[0]


def tell_plain(value: Any, source: int) -> Any:
    """What rank `source` has and JSON can hold, on every rank. Over gloo."""
    if not dist.is_initialized():
        return value
    is_source = dist.get_rank() == source
    content = torch.tensor(list(json.dumps(value).encode() if is_source else b""), dtype=torch.uint8)
    length = torch.tensor([len(content)])
    dist.broadcast(length, src=source)
    if not is_source:
        content = torch.empty(int(length), dtype=torch.uint8)
    dist.broadcast(content, src=source)
    return json.loads(bytes(content.tolist()))


def add_up(values: list[float]) -> list[float]:
    """Sums over all ranks, on every rank. Over gloo."""
    sums = torch.tensor(values, dtype=torch.float64)
    if dist.is_initialized():
        dist.all_reduce(sums)
    return [float(each) for each in sums]


def gather(value: Any) -> list[Any]:
    """The objects of all ranks, by rank, on every rank. Over gloo."""
    if not dist.is_initialized():
        return [value]
    rows: list[Any] = [None] * dist.get_world_size()
    for source in range(len(rows)):
        rows[source] = tell(value, source)
    return rows
