"""From counts to named GPUs."""

from stretto.place.as_pinned import AsPinned
from stretto.place.buddy import Buddy
from stretto.place.consolidate import Consolidated, Relaxed
from stretto.place.fill import Placer, Rule, fill
from stretto.place.registry import PLACERS, load_placer
from stretto.place.spread import Spread
from stretto.place.whole_nodes import WholeNodes

__all__ = [
    "PLACERS",
    "AsPinned",
    "Buddy",
    "Consolidated",
    "Placer",
    "Relaxed",
    "Rule",
    "Spread",
    "WholeNodes",
    "fill",
    "load_placer",
]
