"""What is said of an emulated cluster, and what it needs of the service that it is a part of."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from stretto.backends.options import Site, option
from stretto.model import InputError, View

if TYPE_CHECKING:
    from stretto.backends.protocol import Backend
    from stretto.service.eventlog.writer import LogWriter

FASTEST = 10_000.0  # pace of an emulated clock; chosen: a millisecond is ten seconds then


@dataclass(frozen=True, kw_only=True)
class ServiceSite(Site):
    """The same for a backend within the service: its log, its policy's views, and settings of the world."""

    log: "LogWriter"
    views: frozenset[View]
    world: Mapping[str, str] = field(default_factory=dict)  # by name, without "sim."


@dataclass(frozen=True)
class EmulatedOptions:
    """Workers are only pretended, on a cluster of any size and in time of any pace."""

    name: ClassVar[str] = "emulated"

    cluster: str = option("", cli="--cluster", help="The cluster to emulate: a file or a built-in name.")
    pace: float = option(1.0, cli="--pace", help="Speed of an emulated clock, in times of the real one.")
    profiles: str = option("", cli="--profiles", help="Measured profiles that emulated trainings follow.")

    def __post_init__(self) -> None:
        """Check that there is a cluster, and the pace of its clock."""
        if not self.cluster:
            raise InputError("--backend emulated: missing --cluster, a file or a built-in name")
        if not 0 < self.pace <= FASTEST:
            raise InputError(f"--pace {self.pace:g}: expected a number above 0 and at most {FASTEST:g}")

    async def open(self, site: Site) -> "Backend":
        """A cluster of values, which goes on from what the log says."""
        from stretto.clusters import read_cluster
        from stretto.service.emulated.backend import EmulatedBackend
        from stretto.settings import settings_of
        from stretto.sim.settings import Batches, SimSettings
        from stretto.sim.truth.profiles import read_profiles

        assert isinstance(site, ServiceSite)
        settings = replace(SimSettings(), **settings_of(SimSettings, site.world, space="sim"))
        if View.GOODPUT_MODEL not in site.views:
            settings = replace(settings, batches=Batches.TUNED)  # as in simulations: nothing chooses batches
        profiles = read_profiles(Path(self.profiles)) if self.profiles else None
        return EmulatedBackend(read_cluster(self.cluster), site.log, settings, profiles).open()
