"""A cluster with a service over it."""

from collections.abc import Sequence
from typing import Protocol

from stretto.testing.backends.world import World


class ServiceWorld(World, Protocol):
    """One cluster, and how a service over it is started.

    program, serve: the service over this cluster is `python *program serve --state DIR … *serve`; `program`
    is `-m` and the module of the command line, unless that cannot say it. `left` counts workers of this
    service, too.
    """

    program: Sequence[str]
    serve: Sequence[str]

    def forget_workers(self) -> None:
        """Ended workers keep no id: another service begins, whose jobs are numbered from 1 again."""
