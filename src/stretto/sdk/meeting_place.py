"""The store in which the members of a generation meet, and the proof that they are its members.

The service draws a secret for each generation and tells it to the workers of the job only. The store listens
on the address of its node, and members use keys under a name that follows from the secret. A store has no
rights of its own, though: whoever reaches its port may list and overwrite what is in it. So before members
unpickle anything of each other, each shows that it knows the secret itself, which is never in the store.
"""

import hashlib
import hmac
import socket
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

TIMEOUT = timedelta(seconds=30)
WAITING_CONNECTIONS = 1024


def host_store(address: str, secret: str) -> tuple[Store, str]:
    """A new store on an address of this node, and HOST:PORT under which others join it."""
    listening = listen_on(address)
    if listening is None:
        store = TCPStore(address, 0, is_master=True, timeout=TIMEOUT, wait_for_workers=False)
    else:
        port = listening.getsockname()[1]
        store = TCPStore(
            address,
            port,
            is_master=True,
            timeout=TIMEOUT,
            wait_for_workers=False,
            master_listen_fd=listening.detach(),  # the store closes it
        )
    return named(store, secret), f"{address}:{store.port}"


def join_store(place: str, secret: str) -> Store:
    """The store that another member hosts at HOST:PORT."""
    host, _, port = place.rpartition(":")
    store = TCPStore(host.strip("[]"), int(port), timeout=TIMEOUT, wait_for_workers=False)
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


def check_members(secret: str, rank: int, world: int) -> None:
    """All ranks of the default group show that they know the secret; raises RuntimeError for a stranger.

    Fixed bytes over gloo: nothing of a stranger's is unpickled.
    """
    shown = [torch.zeros(hashlib.sha256().digest_size, dtype=torch.uint8) for _ in range(world)]
    dist.all_gather(shown, torch.tensor(list(proof_of(secret, rank, world)), dtype=torch.uint8))
    for each, proof in enumerate(shown):
        if not hmac.compare_digest(bytes(proof.tolist()), proof_of(secret, each, world)):
            raise RuntimeError(
                f"rank {each} of {world} does not know the secret of its generation: a stranger"
            )


def proof_of(secret: str, rank: int, world: int) -> bytes:
    """What only a member can show of itself."""
    return bytes.fromhex(derived(secret, f"rank {rank} of {world}"))


def derived(secret: str, purpose: str) -> str:
    """Hexadecimal digits for one purpose, from which the secret cannot be found."""
    return hmac.new(secret.encode(), purpose.encode(), hashlib.sha256).hexdigest()
