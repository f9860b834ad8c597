"""How does a program speak with a running service? The verbs of the command line as methods."""

from stretto.client.client import Client, ServiceError

__all__ = ["Client", "ServiceError"]
