"""Connecting to Ray, and saying in one line why that cannot be."""

import re
import socket

from stretto.model.errors import InputError

AUTO = "auto"
CLIENT = "ray://"
PLAIN = re.compile(r"(ray://)?(\[[0-9A-Fa-f:]+\]|[^\s:/\[\]]+):([0-9]{1,5})")
REACH_S = 3.0  # for a connection to be accepted; chosen
EXPECTED = "expected auto, HOST:PORT or ray://HOST:PORT"


def check_address(address: str) -> None:
    """Raise InputError for an address that is none, or at which nothing listens."""
    if address == AUTO:
        return
    found = PLAIN.fullmatch(address)
    if found is None or not 0 < int(found[3]) < 65536:
        raise InputError(f"--address {address}: {EXPECTED}")
    host, port = found[2].strip("[]"), int(found[3])
    try:
        socket.create_connection((host, port), REACH_S).close()
    except OSError as failure:
        why = failure.strerror or str(failure)
        raise InputError(f"--address {address}: nothing answers at {host}:{port}: {why}") from None


def connect(address: str, namespace: str) -> bool:
    """Connect this process to Ray; whether it stands outside the cluster. Raises InputError."""
    import ray

    check_address(address)
    quiet = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": False}
    try:
        if address.startswith(CLIENT):
            ray.init(address, namespace=namespace, **quiet)
            return True
        ray.init(address, namespace=namespace, **quiet)
    except ConnectionError as failure:
        raise InputError(f"--address {address}: {one_line(failure)}") from failure
    except (RuntimeError, ValueError, AssertionError) as failure:
        raise InputError(f"--address {address}: {one_line(failure)}") from failure
    return False


def one_line(failure: BaseException) -> str:
    """What Ray says, without its line breaks."""
    return " ".join(str(failure).split())[:400]
