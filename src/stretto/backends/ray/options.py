"""What is said of a Ray cluster."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from stretto.agent.node import MAX_LOG_BYTES
from stretto.backends.options import Site, option
from stretto.errors import InputError

if TYPE_CHECKING:
    from stretto.backends.protocol import Backend


@dataclass(frozen=True)
class RayOptions:
    """Workers are actors of a Ray cluster."""

    name: ClassVar[str] = "ray"

    address: str = option(  # "": auto
        "",
        cli="--address",
        help="Ray only: the cluster, as auto, HOST:PORT, or ray://HOST:PORT from outside.",
    )
    grow: tuple[str, ...] = option(  # (): as its autoscaler says
        (),
        cli="--grow",
        help="Ray and Kubernetes: nodes that the cluster's autoscaler may add, like a100:8:4 for four nodes "
        "of eight; may be given several times. Kubernetes: a100:8:4:LABEL=VALUE for nodes with a label. "
        "no: ask for none. Else the configuration of Ray's autoscaler counts.",
    )
    max_log_bytes: int = option(MAX_LOG_BYTES, cli="--max-log-size", at_least=0)  # 0: any amount

    async def open(self, site: Site) -> "Backend":
        """The cluster, by way of a gateway process."""
        shared = site.shared_folder()
        try:
            from stretto.backends.ray.backend import open_ray
        except ModuleNotFoundError as missing:
            raise InputError(f"--backend ray needs {missing.name}: install stretto[ray]") from None
        return await open_ray(
            self.address or "auto",
            site.service_name,
            shared,
            grow=self.grow,
            addresses=site.node_addresses,
            max_log_bytes=self.max_log_bytes,
        )
