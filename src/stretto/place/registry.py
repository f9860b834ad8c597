"""Placers by name."""

from collections.abc import Mapping
from typing import Any

from stretto.model import InputError
from stretto.place.as_pinned import AsPinned
from stretto.place.buddy import Buddy
from stretto.place.consolidate import Consolidated, OneNodeOrSpread, Relaxed
from stretto.place.fill import Placer
from stretto.place.spread import Spread
from stretto.place.whole_nodes import WholeNodes
from stretto.settings import settings_of

PLACERS: Mapping[str, type] = {
    "consolidated": Consolidated,
    "relaxed": Relaxed,
    "one-node-or-spread": OneNodeOrSpread,
    "whole-nodes": WholeNodes,
    "buddy": Buddy,
    "spread": Spread,
    "pinned": AsPinned,
}


def load_placer(name: str, **settings: Any) -> Placer:
    """The placer of this name with these fields, texts turned into values; InputError for wrong ones."""
    if name not in PLACERS:
        raise InputError(f"unknown placer {name!r}, expected one of {sorted(PLACERS)}")
    placer: Placer = PLACERS[name](**settings_of(PLACERS[name], settings, space="place"))
    return placer
