"""What a gateway reads of its service, to the end of either."""

import socket

import pytest

pytest.importorskip("ray", reason="ray is not installed; install stretto[ray]")
from stretto.backends.ray.gateway import orders_in

pytestmark = [pytest.mark.ray, pytest.mark.large]


def test_a_service_that_is_killed_in_the_middle_of_a_word_is_gone_and_nothing_else() -> None:
    service, gateway = socket.socketpair()
    with gateway, gateway.makefile("rb") as lines:
        service.sendall(b'{"id": 1}\n{"id": 2}\n{"id"')
        gateway.sendall(b"what nobody will read\n")
        service.close()
        assert list(orders_in(lines)) == [{"id": 1}, {"id": 2}]
