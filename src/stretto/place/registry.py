"""Placers by name."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from stretto.model import InputError
from stretto.place.as_pinned import AsPinned
from stretto.place.buddy import Buddy
from stretto.place.consolidate import Consolidated, Relaxed
from stretto.place.fill import Placer
from stretto.place.spread import Spread
from stretto.place.whole_nodes import WholeNodes

PLACERS: Mapping[str, type] = {
    "consolidated": Consolidated,
    "relaxed": Relaxed,
    "whole-nodes": WholeNodes,
    "buddy": Buddy,
    "spread": Spread,
    "pinned": AsPinned,
}


def load_placer(name: str, **settings: Any) -> Placer:
    """The placer of this name with these fields; raises InputError for a name or field that is not there."""
    if name not in PLACERS:
        raise InputError(f"unknown placer {name!r}, expected one of {sorted(PLACERS)}")
    known = {field.name: field.default for field in fields(PLACERS[name])}
    for field, value in settings.items():
        if field not in known:
            expected = f"expected one of {sorted(known)}" if known else "it has none"
            raise InputError(f"placer {name} has no setting {field!r}, {expected}")
        if type(value) is not type(known[field]):
            wanted = type(known[field]).__name__
            raise InputError(f"placer {name}: {field} must be of type {wanted}, got {value!r}")
    placer: Placer = PLACERS[name](**settings)
    return placer
