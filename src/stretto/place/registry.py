"""Placers by name.

A placer of this package is one line in PLACERS. One of another package is an entry point of the group
`stretto.placers`. Files are not loaded by name: a user of a service may name settings in a what-if.
"""

from typing import Any

from stretto.components import Registry
from stretto.place.fill import Placer

PLACERS: dict[str, str] = {
    "consolidated": "stretto.place.consolidate:Consolidated",
    "relaxed": "stretto.place.consolidate:Relaxed",
    "one-node-or-spread": "stretto.place.consolidate:OneNodeOrSpread",
    "whole-nodes": "stretto.place.whole_nodes:WholeNodes",
    "buddy": "stretto.place.buddy:Buddy",
    "spread": "stretto.place.spread:Spread",
    "pinned": "stretto.place.as_pinned:AsPinned",
}
REGISTRY = Registry(
    kind="placer",
    ours=PLACERS,
    group="stretto.placers",
    space="place",
    required=("place",),
    installed_only=True,
)


def load_placer(name: str, /, **settings: Any) -> Placer:
    """The placer of this name with these fields, texts turned into values; InputError for wrong ones."""
    placer: Placer = REGISTRY.load(name, **settings)
    return placer
