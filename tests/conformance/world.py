"""A cluster with services over it, as the other half of the suite needs it: see `stretto.testing.backends`.

Each file of `worlds` has a function `begin(folder: Path) -> World`, which starts the cluster below an empty
folder, once for the whole test session, and raises `CannotRun` with the reason where this machine cannot.
"""

from collections.abc import Sequence
from typing import Protocol

from stretto.testing.backends import CannotRun
from stretto.testing.backends import World as WorkerWorld

__all__ = ["CannotRun", "World"]


class World(WorkerWorld, Protocol):
    """One cluster, and how a service over it is started.

    program, serve: the service over this cluster is `python *program serve --state DIR … *serve`; `program`
    is ("-m", "stretto.cli.app") unless the command line cannot say it. Workers of others are none of its own.
    """

    program: Sequence[str]
    serve: Sequence[str]

    def forget_workers(self) -> None:
        """Ended workers keep no id: another service begins, whose jobs are numbered from 1 again."""
        ...
