"""How does a program speak with a running service? The verbs of the command line as methods."""

from stretto.client.client import Client, Refused, ServiceError, Untrusted

__all__ = ["Client", "Refused", "ServiceError", "Untrusted"]
