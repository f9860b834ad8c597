"""What is said of workers on this machine."""

import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from stretto.agent.node import MAX_LOG_BYTES
from stretto.backends.options import Site, check_passed_variables, option
from stretto.errors import InputError

AGENT = "agent"  # what runs on this machine, with its output, in the state directory

if TYPE_CHECKING:
    from stretto.backends.protocol import Backend


@dataclass(frozen=True)
class LocalOptions:
    """Workers are processes of this machine."""

    name: ClassVar[str] = "local"

    slots: int | None = option(  # None: one for each real GPU
        None, cli="--slots", help="Number of workers at once on a machine without GPUs.", at_least=1
    )
    gpu_type: str = option("", cli="--gpu-type", help="Name of the type of this machine's GPUs or slots.")
    node: str = option("", help="The name of this machine; else its host name.")
    run_as: tuple[str, ...] = option((), cli="--run-as")  # as which Unix users; (): as the service's
    pass_env: tuple[str, ...] = option((), cli="--pass-env")  # names and patterns of our environment
    max_log_bytes: int = option(MAX_LOG_BYTES, cli="--max-log-size", at_least=0)  # 0: any amount

    def __post_init__(self) -> None:
        """Check which user may be which, which variables are passed on, and the number of slots."""
        if self.run_as and os.geteuid() != 0:
            raise InputError("--run-as: only root can run jobs as other users")
        check_passed_variables(self.pass_env)
        from stretto.model.cluster import MAX_GPUS_PER_NODE  # here, since it imports NumPy

        if self.slots is not None and self.slots > MAX_GPUS_PER_NODE:
            raise InputError(f"--slots: expected at most {MAX_GPUS_PER_NODE}, got {self.slots}")

    async def open(self, site: Site) -> "Backend":
        """This machine with an agent of our own."""
        from stretto.backends.local.agent_client import OwnAgent
        from stretto.backends.local.backend import LocalBackend

        agent = OwnAgent(
            self.node or socket.gethostname(),
            site.state / AGENT,
            self.slots,
            self.gpu_type,
            pass_env=self.pass_env,
            max_log_bytes=self.max_log_bytes,
            run_as=bool(self.run_as),
        )
        return await LocalBackend([agent]).open()
