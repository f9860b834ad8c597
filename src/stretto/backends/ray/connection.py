"""Connecting to Ray, and saying in one line why that cannot be."""

import os
import re
import socket
from contextlib import suppress

from stretto.errors import InputError, one_line

AUTO = "auto"
CLIENT = "ray://"
PLAIN = re.compile(r"(ray://)?(\[[0-9A-Fa-f:]+\]|[^\s:/\[\]]+):([0-9]{1,5})")
REACH_S = 3.0  # for a connection to be accepted; chosen
ANSWER_S = 5.0  # for the first bytes of an answer; chosen
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"  # RFC 9113, section 3.4
SETTINGS = 4  # type of a frame; section 6.5
NO_SETTINGS = bytes((0, 0, 0, SETTINGS, 0, 0, 0, 0, 0))
EXPECTED = "expected auto, HOST:PORT or ray://HOST:PORT"


def check_address(address: str, option: str = "--address") -> None:
    """Raise InputError for an address that is none, or at which nothing listens."""
    if address == AUTO:
        return
    parts = PLAIN.fullmatch(address)
    if parts is None or not 0 < int(parts[3]) < 65536:
        raise InputError(f"{option} {address}: {EXPECTED}")
    host, port = parts[2].strip("[]"), int(parts[3])
    try:
        with socket.create_connection((host, port), REACH_S) as connection:
            is_ray = is_encrypted() or speaks_http2(connection)
    except OSError as failure:
        why = failure.strerror or str(failure)
        raise InputError(f"{option} {address}: nothing answers at {host}:{port}: {why}") from None
    if not is_ray:
        raise InputError(f"{option} {address}: what answers at {host}:{port} is not Ray")


def speaks_http2(connection: socket.socket) -> bool:
    """Whether the other side speaks what Ray does; Ray itself would ask a stranger for two minutes."""
    connection.settimeout(ANSWER_S)
    connection.sendall(PREFACE + NO_SETTINGS)
    answer = b""
    with suppress(OSError):
        while len(answer) < len(NO_SETTINGS) and (more := connection.recv(64)):
            answer += more
    return len(answer) >= len(NO_SETTINGS) and answer[3] == SETTINGS


def is_encrypted() -> bool:
    """Whether Ray is told to use TLS, so that strangers cannot be told from it this way."""
    return os.environ.get("RAY_USE_TLS", "0") not in ("", "0")


def connect(address: str, namespace: str, option: str = "--address") -> bool:
    """Connect this process to Ray; whether it stands outside the cluster. Raises InputError."""
    import ray

    check_address(address, option)
    quiet = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": False}
    try:
        ray.init(address, namespace=namespace, **quiet)
    except ConnectionError as failure:
        hint = " (as also where RAY_AUTH_TOKEN is missing or wrong)" if address.startswith(CLIENT) else ""
        raise InputError(f"{option} {address}: {one_line(failure)}{hint}") from failure
    except (RuntimeError, ValueError, AssertionError) as failure:
        raise InputError(f"{option} {address}: {one_line(failure)}") from failure
    return address.startswith(CLIENT)
