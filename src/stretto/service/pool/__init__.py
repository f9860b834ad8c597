"""How is work that users ask for kept from stopping everybody else's? In processes of its own, in turns."""

from stretto.service.pool.pool import Closed, OutOfMemory, OutOfTime, Pool, TooManyWaiting, Turns

__all__ = ["Closed", "OutOfMemory", "OutOfTime", "Pool", "TooManyWaiting", "Turns"]
