"""Who may take part in a generation, and who is only near it."""

import os
import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from stretto.sdk.channel import Generation, Member, as_document, read_generation
from stretto.sdk.process_group import (
    host_store,
    join_store,
    listen_on,
    own_address,
    set_timeout,
    use_loopback,
)
from stretto.sdk.settings import RequestedBatch

pytestmark = [pytest.mark.sockets, pytest.mark.torch]


def port_of(place: str) -> int:
    return int(place.rpartition(":")[2])


def test_a_store_listens_on_the_address_of_its_node_only() -> None:
    store, place = host_store("127.0.0.1", "secret")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port_of(place)), timeout=60)
    join_store(place, "secret").set("key", "value")
    assert store.get("key") == b"value"


def test_an_address_that_only_others_know_cannot_be_listened_on() -> None:
    assert listen_on("192.0.2.1") is None  # of a range that no machine has


def test_what_a_stranger_writes_into_a_store_is_nothing_to_its_members() -> None:
    store, place = host_store("127.0.0.1", "secret")
    store.set("verdict", "now")
    stranger = TCPStore("127.0.0.1", port_of(place), timeout=timedelta(seconds=60), wait_for_workers=False)
    stranger.set("verdict", "over")
    stranger.set("leaving", "")
    assert store.get("verdict") == b"now"
    assert not store.check(["leaving"])
    assert not join_store(place, "another").check(["verdict"])
    # A store shows its keys to everybody, so none of them may give the secret away.
    assert [key for key in stranger.list_keys() if "secret" in key] == []


def test_a_timeout_is_set_by_pytorchs_public_name_where_it_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[timedelta] = []
    monkeypatch.setattr(dist, "set_timeout", given.append, raising=False)
    set_timeout(timedelta(seconds=7))
    assert given == [timedelta(seconds=7)]


def test_a_service_without_secrets_is_still_understood() -> None:
    store, place = host_store("127.0.0.1", "")
    join_store(place, "").set("verdict", "now")
    assert store.get("verdict") == b"now"


def test_members_tell_each_other_a_generation_without_its_secret() -> None:
    members = Member("1.1.0", "n1", "10.0.0.1", 2), Member("1.1.1", "n2", "10.0.0.2", 2)
    told = Generation(4, members, "10.0.0.1:5", "1.1.0", RequestedBatch(64, 2), 3.5, secret="secret")
    document = as_document(told)
    assert "secret" not in str(document)
    assert read_generation({**document, "secret": "secret"}) == told
    assert read_generation(as_document(Generation(1, members))) == Generation(1, members)


@pytest.mark.skipif(sys.platform != "linux", reason="where loopback has another name")
@pytest.mark.parametrize(
    ("of_pod", "of_node", "interface"),
    [
        pytest.param("", "127.0.0.1", "lo", id="a node on loopback"),
        pytest.param("127.0.0.1", "127.0.0.1", "lo", id="a pod on the network of such a node"),
        pytest.param("10.88.1.4", "127.0.0.1", None, id="a pod with an address of its own there"),
        pytest.param("", "10.0.0.1", None, id="a node that others reach"),
    ],
)
def test_gloo_stays_on_loopback_only_where_the_worker_itself_is_there(
    monkeypatch: pytest.MonkeyPatch, of_pod: str, of_node: str, interface: str | None
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "")  # so that what is set goes again
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    monkeypatch.setenv("STRETTO_POD_ADDRESS", of_pod)
    use_loopback(of_node)
    assert os.environ.get("GLOO_SOCKET_IFNAME") == interface


# Both know the keys, as whoever has listed them does. The second does what one in a peer's place would: it
# sends a pickle that runs code as soon as it is read.
STRANGER = """
import sys, torch
from datetime import timedelta
from torch.distributed import FileStore, all_gather
from stretto.sdk import process_group

class Evil:
    def __reduce__(self):
        return print, ("the stranger's code runs",)

rank, secret, store = int(sys.argv[1]), sys.argv[2], FileStore(sys.argv[3], 2)
process_group.use_loopback("127.0.0.1")
if rank and secret != "secret":
    proofs = [torch.zeros(32, dtype=torch.uint8) for _ in range(2)]
    process_group.check_members = lambda *_: all_gather(proofs, proofs[0].clone())
process_group.form(store, rank, 2, False, timedelta(seconds=60), secret)
print(process_group.broadcast_object(Evil() if rank else None, 1))
"""


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("secret", ["secret", "guessed"])
def test_nothing_is_unpickled_of_a_stranger_in_the_place_of_a_peer(tmp_path: Path, secret: str) -> None:
    def begin(rank: int, secret: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", STRANGER, str(rank), secret, str(tmp_path / "store")]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    member, peer = begin(0, "secret"), begin(1, secret)
    try:
        out, err = member.communicate(timeout=120)
    finally:
        peer.kill()
        peer.communicate()
    if secret == "secret":  # so the test would see it
        assert "the stranger's code runs" in out
    else:
        assert "the stranger's code runs" not in out
        assert "rank 1 of 2 does not know the secret of its generation" in err


def test_a_worker_in_a_pod_tells_the_address_of_its_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STRETTO_POD_ADDRESS", raising=False)
    assert own_address("10.0.0.1") == "10.0.0.1"
    monkeypatch.setenv("STRETTO_POD_ADDRESS", "10.244.1.7")
    assert own_address("10.0.0.1") == "10.244.1.7"
