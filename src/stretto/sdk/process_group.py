"""The process group of one generation: its store, proof of membership, collective calls, and the model in it.

Gradients go over NCCL where the model is on GPUs; everything else is small and goes over gloo.

The service draws a secret for each generation and tells it to the workers of the job only. The store listens
on the address of its node, and members use keys under a name that follows from the secret. A store has no
rights of its own, though: whatever reaches its port may list and overwrite what is in it. So before members
unpickle anything of each other, each shows that it knows the secret itself, which is never in the store.
"""

import contextlib
import hashlib
import hmac
import json
import os
import socket
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel

STORE_TIMEOUT = timedelta(seconds=30)
WAITING_CONNECTIONS = 1024
FORM_TIMEOUT = timedelta(seconds=60)  # chosen: every member has said a moment ago that it is here
LINGER_S = 10.0
LET_GO_S = 0.002  # chosen: with a quarter of it 670 of 670 groups were left, without it about 200 of 201
HOOKS: list[Any] = []  # sys.excepthook before and after forming: torch adds one for each group, and keeps all


def host_store(address: str, secret: str) -> tuple[Store, str]:
    """A new store on an address of this node, and HOST:PORT under which others join it."""
    listening = listen_on(address)
    if listening is None:
        store = TCPStore(address, 0, is_master=True, timeout=STORE_TIMEOUT, wait_for_workers=False)
    else:
        port = listening.getsockname()[1]
        store = TCPStore(
            address,
            port,
            is_master=True,
            timeout=STORE_TIMEOUT,
            wait_for_workers=False,
            master_listen_fd=listening.detach(),  # the store closes it
        )
    return named(store, secret), f"{address}:{store.port}"


def join_store(place: str, secret: str) -> Store:
    """The store that another member hosts at HOST:PORT."""
    host, _, port = place.rpartition(":")
    store = TCPStore(host.strip("[]"), int(port), timeout=STORE_TIMEOUT, wait_for_workers=False)
    return named(store, secret)


def listen_on(address: str) -> socket.socket | None:
    """A socket on this address and a free port; None where it is no address of this machine.

    Such a one is known to others only, as behind a translation of addresses: the store listens on all then.
    """
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
    except OSError:
        return None
    try:
        listening.bind(place)
        listening.listen(WAITING_CONNECTIONS)
    except OSError:
        listening.close()
        return None
    return listening


def named(store: TCPStore, secret: str) -> Store:
    """The part of a store that is the generation's own; all of it where an older service told no secret."""
    return PrefixStore(derived(secret, "names"), store) if secret else store


def form(store: Store, rank: int, world: int, on_gpu: bool, timeout: timedelta, secret: str = "") -> None:
    """Become rank `rank` of the default group; alone, there is none.

    Raises if a member does not come, or one comes that does not know the secret of the generation. `timeout`
    is for the collectives of the group.
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
    set_timeout(timeout)


def set_timeout(timeout: timedelta) -> None:
    """Let collectives of the default group give up after that. Only PyTorch 2.14 made this public."""
    public = getattr(dist, "set_timeout", None)
    if public is not None:
        public(timeout)
    else:
        distributed_c10d._set_pg_timeout(timeout)


def own_address(of_node: str) -> str:
    """Under which others reach this worker: its pod's own address, where it has one, else its node's."""
    return os.environ.get("STRETTO_POD_ADDRESS") or of_node


def use_loopback(of_node: str) -> None:
    """Gloo looks up the host's name to find its interface; on loopback, the name may lead elsewhere.

    of_node: the address of this worker's node. That of its pod counts, where it has one.
    """
    if own_address(of_node).startswith("127.") and sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


def leave() -> None:
    """Destroy the default group, if there is one.

    After a collective call gloo's thread lets go of the tensor. For that it takes Python's lock while it
    holds one of the group's. A thread that destroys the group holds Python's and takes the group's. Were that
    at the same moment, both would wait for ever (PyTorch's issue 56297). So the thread is left to it first.
    """
    if dist.is_initialized():
        time.sleep(LET_GO_S)
        dist.destroy_process_group()
    if HOOKS and sys.excepthook is HOOKS[1]:
        sys.excepthook = HOOKS[0]
    HOOKS.clear()


def exit_barrier(store: Store, occasion: str, world: int, wait: bool) -> bool:
    """Say that this rank is through with the group, and wait until all are; whether they were in time.

    A process that ends while a peer still reads what it sent can reset the connection under it.
    """
    with contextlib.suppress(Exception):  # the host of the store may be gone already: then all are through
        through = store.add(f"through/{occasion}", 1)
        until_s = time.monotonic() + LINGER_S
        while wait and through < world and time.monotonic() < until_s:
            time.sleep(0.005)
            through = store.add(f"through/{occasion}", 0)
        return through >= world
    return True


def broadcast_object(value: Any, source: int) -> Any:
    """The object that rank `source` has, on every rank. Over gloo, pickled: all ranks must be members."""
    box = [value]
    if dist.is_initialized():
        dist.broadcast_object_list(box, src=source, device=torch.device("cpu"))
    return box[0]


def broadcast_json(value: Any, source: int) -> Any:
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


def all_reduce_sums(values: list[float]) -> list[float]:
    """Sums over all ranks, on every rank. Over gloo."""
    sums = torch.tensor(values, dtype=torch.float64)
    if dist.is_initialized():
        dist.all_reduce(sums)
    return [float(each) for each in sums]


def all_gather_objects(value: Any) -> list[Any]:
    """The objects of all ranks, by rank, on every rank. Over gloo."""
    if not dist.is_initialized():
        return [value]
    rows: list[Any] = [None] * dist.get_world_size()
    for source in range(len(rows)):
        rows[source] = broadcast_object(value, source)
    return rows


def check_members(secret: str, rank: int, world: int) -> None:
    """All ranks of the default group show that they know the secret; raises RuntimeError for a stranger.

    Fixed bytes over gloo: nothing of a stranger's is unpickled.
    """
    proofs = [torch.zeros(hashlib.sha256().digest_size, dtype=torch.uint8) for _ in range(world)]
    dist.all_gather(proofs, torch.tensor(list(proof_of(secret, rank, world)), dtype=torch.uint8))
    for other, proof in enumerate(proofs):
        if not hmac.compare_digest(bytes(proof.tolist()), proof_of(secret, other, world)):
            raise RuntimeError(
                f"rank {other} of {world} does not know the secret of its generation: a stranger"
            )


def proof_of(secret: str, rank: int, world: int) -> bytes:
    """What only a member can show of itself."""
    return bytes.fromhex(derived(secret, f"rank {rank} of {world}"))


def derived(secret: str, purpose: str) -> str:
    """Hexadecimal digits for one purpose, from which the secret cannot be found."""
    return hmac.new(secret.encode(), purpose.encode(), hashlib.sha256).hexdigest()


# ── the model in the group ──────────────────────────────────────────────────────────────────────────────────


class Replica(nn.Module):
    """Calls the model through DDP while a batch is out in training, and directly otherwise.

    Evaluation makes no collective calls, so that ranks may evaluate different parts, or only one of them.
    """

    def __init__(self, module: nn.Module, options: dict[str, Any]) -> None:
        super().__init__()
        self.module = module
        self._options = options
        self.error_handler: AbstractContextManager[None] = nullcontext()  # around collective calls
        self._forget_group()

    def _forget_group(self) -> None:
        object.__setattr__(self, "_ddp", None)  # hidden from nn.Module: parameters are listed once
        self.in_micro_batch = False

    def join_group(self) -> None:
        """Wrap for the default group, or for none. Parameters must be the same on all ranks already."""
        self.leave_group()
        object.__setattr__(self, "_trained", which_are_trained(self.module))
        if dist.is_initialized() and any(each.requires_grad for each in self.module.parameters()):
            wrapped = DistributedDataParallel(self.module, init_sync=False, **self._options)
            object.__setattr__(self, "_ddp", wrapped)

    def follow_freezing(self) -> None:
        """Wrap anew where layers were frozen or thawed since: DDP averages what was trained before."""
        if dist.is_initialized() and which_are_trained(self.module) != self.__dict__["_trained"]:
            self.join_group()

    def leave_group(self) -> None:
        """Unwrap; gradients go, since they may be views of what the wrapper owned."""
        self._forget_group()
        for parameter in self.module.parameters():
            parameter.grad = None

    def begin_micro_batch(self, is_synchronised: bool) -> None:
        """The next forward and backward pass is of a micro-batch of the training."""
        self.__dict__["in_micro_batch"] = True  # as an attribute, without nn.Module's search
        ddp = self._wrapped()
        if ddp is not None:
            ddp.require_backward_grad_sync = is_synchronised  # what DDP.no_sync() sets

    def end_micro_batch(self) -> None:
        """Its backward pass is through."""
        self.__dict__["in_micro_batch"] = False

    def forget_micro_batches(self) -> None:
        """After some whose gradients were averaged by hand: DDP shall not remember what they used.

        It would take a parameter that they used for one of the next step, and find no gradient of it.
        """
        ddp = self._wrapped()
        if ddp is not None and self._options.get("find_unused_parameters"):
            ddp.reducer._reset_state()

    def _wrapped(self) -> DistributedDataParallel | None:
        return cast("DistributedDataParallel | None", self.__dict__["_ddp"])

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the model gives."""
        ddp = self._wrapped() if self.in_micro_batch and torch.is_grad_enabled() else None
        if ddp is not None:
            with self.error_handler:
                return ddp(*args, **kwargs)
        return self.module(*args, **kwargs)


def which_are_trained(module: nn.Module) -> list[bool]:
    """Of all parameters, those that are not frozen."""
    return [each.requires_grad for each in module.parameters()]
