"""How does a program speak with a running service? The verbs of the command line as methods."""

from stretto.client.async_client import AsyncClient
from stretto.client.client import Client
from stretto.client.errors import Refused, ServiceError, Untrusted

__all__ = ["AsyncClient", "Client", "Refused", "ServiceError", "Untrusted"]
