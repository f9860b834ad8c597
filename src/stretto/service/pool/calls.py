"""What goes between a pool and its processes: calls one way, answers the other, each in a frame."""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO

LENGTH = struct.Struct(">Q")  # of what follows, in bytes


@dataclass(frozen=True)
class Call:
    """A function that can be imported, its arguments, and what it may use."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    most_s: float  # of wall time
    most_bytes: int  # of memory, beside what the process has when the call begins


@dataclass(frozen=True)
class Answer:
    """What came of a call: a value, or what was wrong."""

    value: Any = None
    wrong: str = ""  # the line of an InputError
    failed: str = ""  # any other error
    trace: str = ""  # where that came from, in the process
    out_of_memory: bool = False


def frame(body: bytes) -> bytes:
    """A message as it is written."""
    return LENGTH.pack(len(body)) + body


def read_frame(source: BinaryIO) -> bytes | None:
    """The next message; None once there are no more."""
    head = source.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    return source.read(LENGTH.unpack(head)[0])
