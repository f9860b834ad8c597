"""How much of what belongs to others may be used, and which jobs make room when it goes back?"""

from stretto.lend.lending import CapacityLoaning, lendable
from stretto.lend.reclaim import RULES

__all__ = ["RULES", "CapacityLoaning", "lendable"]
