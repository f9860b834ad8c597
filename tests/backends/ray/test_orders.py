"""What a gateway reads of its service, to the end of either, and what it answers to an order."""

import socket

import pytest

pytest.importorskip("ray", reason="ray is not installed; install stretto[ray]")
from stretto.backends.protocol import NoSuchWorker, NotNow
from stretto.backends.ray.cluster import Cluster
from stretto.backends.ray.gateway import WorkerCommands, orders_in

pytestmark = [pytest.mark.ray, pytest.mark.large]


def test_a_service_that_is_killed_in_the_middle_of_a_word_is_gone_and_nothing_else() -> None:
    service, gateway = socket.socketpair()
    with gateway, gateway.makefile("rb") as lines:
        service.sendall(b'{"id": 1}\n{"id": 2}\n{"id"')
        gateway.sendall(b"what nobody will read\n")
        service.close()
        assert list(orders_in(lines)) == [{"id": 1}, {"id": 2}]


def test_whether_there_is_a_worker_is_not_known_while_it_is_started() -> None:
    cluster = Cluster("s1", 30.0, 75.0)
    orders = WorkerCommands(cluster)
    with cluster.begins("7.1.0"), pytest.raises(NotNow, match=r"worker 7\.1\.0 is being started"):
        orders.stop("7.1.0", 0.0)
    with pytest.raises(NoSuchWorker, match=r"no worker 7\.1\.0 on any node"):
        orders.stop("7.1.0", 0.0)
