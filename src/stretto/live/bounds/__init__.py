"""What holds whatever the policy is? What jobs have at most, what is given back, what is cut off a plan."""

from stretto.live.bounds.cutting import cut, tighten
from stretto.live.bounds.desk import Desk
from stretto.live.bounds.room import make_room
from stretto.live.bounds.showing import enclaves, on_nodes, open_nodes, shown

__all__ = ["Desk", "cut", "enclaves", "make_room", "on_nodes", "open_nodes", "shown", "tighten"]
