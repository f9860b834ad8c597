"""Who we are, as others see us that want the same store."""

import os
import socket


def this_service() -> str:
    """Process and host."""
    return f"stretto {os.getpid()} on {socket.gethostname()}"[:63]  # PostgreSQL cuts names there
