"""What a policy remembers between decisions: a plain value that can be stored, compared and replayed."""

import hashlib
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from typing import Any

import numpy as np

Memory = Any  # None, numbers, strings, tuples, mappings, numpy arrays, and frozen dataclasses of these


def digest(value: Memory) -> str:
    """A short fingerprint of a memory, equal for equal content; TypeError for anything that is no value."""
    hasher = hashlib.blake2b(digest_size=16)
    for part in _parts(value):
        hasher.update(part)
    return hasher.hexdigest()


def _parts(value: Memory) -> list[bytes]:
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return [type(value).__name__.encode(), repr(value).encode(), b";"]
    if isinstance(value, np.ndarray):
        return [b"array", str((value.dtype.str, value.shape)).encode(), np.ascontiguousarray(value).tobytes()]
    if isinstance(value, np.generic):
        return [b"scalar", value.dtype.str.encode(), value.tobytes()]
    if isinstance(value, Enum):
        return [b"enum", str(value).encode(), b";"]
    if isinstance(value, Mapping):
        items = sorted(value.items(), key=lambda item: repr(item[0]))
        return [b"{", *(part for item in items for part in (*_parts(item[0]), *_parts(item[1]))), b"}"]
    if isinstance(value, tuple | list):
        return [b"(", *(part for item in value for part in _parts(item)), b")"]
    if isinstance(value, frozenset | set):
        return [b"<", *sorted(b"".join(_parts(item)) for item in value), b">"]
    if is_dataclass(value) and not isinstance(value, type):
        # Logs keep digests: a field that is younger than some of them counts only where it says something.
        entries = [(entry, getattr(value, entry.name)) for entry in fields(value)]
        told = [
            inner for entry, inner in entries if not entry.metadata.get("is_younger") or inner != usual(entry)
        ]
        inside = [part for inner in told for part in _parts(inner)]
        return [type(value).__name__.encode(), b"[", *inside, b"]"]
    raise TypeError(f"a memory holds values only, got {type(value).__name__}")


def usual(entry: Field[Any]) -> Any:
    """What a field is where nothing is said; None where something has to be said."""
    if entry.default is not MISSING:
        return entry.default
    return entry.default_factory() if entry.default_factory is not MISSING else None
