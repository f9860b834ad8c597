"""How is work that one user asks for kept from stopping that of others? In processes of its own, in turns."""

from stretto.service.pool.pool import Closed, OutOfMemory, OutOfTime, Pool, TooManyWaiting, Turns

__all__ = ["Closed", "OutOfMemory", "OutOfTime", "Pool", "TooManyWaiting", "Turns"]
