"""How is work that users ask for kept from stopping everybody else's? In processes of its own, in turns."""

from stretto.live.pool.pool import Closed, OutOfMemory, OutOfTime, Pool
from stretto.live.pool.turns import TooManyWaiting, Turns

__all__ = ["Closed", "OutOfMemory", "OutOfTime", "Pool", "TooManyWaiting", "Turns"]
