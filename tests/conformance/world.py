"""A cluster with services over it, as both shipped suites need it.

Each file of `worlds` has a function `begin(folder: Path) -> World`, which starts the cluster below an empty
folder, once for the whole test session, and raises `CannotRun` with the reason where this machine cannot.
Workers of others are none of its own.
"""

from stretto.testing.backends import CannotRun
from stretto.testing.services import ServiceWorld as World

__all__ = ["CannotRun", "World"]
