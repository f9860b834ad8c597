"""What is said of a Slurm cluster for all jobs, and how patient the service is with it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from stretto.agent import container
from stretto.agent.node import MAX_LOG_BYTES
from stretto.backends.options import Site, check_passed_variables, option
from stretto.errors import InputError

if TYPE_CHECKING:
    from stretto.backends.protocol import Backend

CONTAINERS = (*container.BY, NONE := "none")
LENT_BY = (DRAIN := "drain", RESERVATION := "reservation")


@dataclass(frozen=True)
class SlurmOptions:
    """Workers are jobs of Slurm: words for sbatch that hold for every job unless its file says otherwise."""

    name: ClassVar[str] = "slurm"

    partitions: tuple[str, ...] = option(  # (): the default one
        (), cli="--partition", help="Slurm only: the partition to use; may be given several times."
    )
    account: str = option("", cli="--account", help="Slurm only: the account of jobs that name none.")
    qos: str = option("", cli="--qos", help="Slurm only: the QOS of jobs that name none.")
    pass_env: tuple[str, ...] = option((), cli="--pass-env")  # names and patterns of our environment
    environment: Mapping[str, str] = field(default_factory=dict)  # over ours, such as SLURM_CONF
    answer_s: float = 15.0  # longest that a command may take; chosen: above Slurm's MessageTimeout of 10
    pending_s: float = 60.0  # after which a worker job that does not begin is withdrawn; chosen
    soon_s: float = 0.3  # between two polls while something is about to change; chosen
    quiet_s: float = 5.0  # and while nothing is; chosen
    max_log_bytes: int = option(MAX_LOG_BYTES, cli="--max-log-size", at_least=0)  # 0: any amount
    json: bool = True  # ask for JSON where Slurm has it
    scratch: str = ""  # where on nodes uploads are copied; "": $SLURM_TMPDIR, or the temporary directory
    container: str = option(
        "",
        cli="--container",
        help="Slurm only: what runs the images that jobs name: apptainer (or singularity), pyxis, none; else "
        "what is found where the service runs.",
    )
    container_program: str = ""  # of nodes, by its path; "": apptainer or singularity, as PATH has them
    mounts: tuple[str, ...] = ()  # folders of nodes that every container sees, beside what a worker needs
    lent_by: str = DRAIN  # how nodes of lenders change hands: drain, or reservation

    def __post_init__(self) -> None:
        """Check which variables are passed on, and how nodes change hands."""
        check_passed_variables(self.pass_env)
        if self.scratch and not Path(self.scratch).is_absolute():
            raise InputError(f"backend.scratch={self.scratch}: expected an absolute path on every node")
        if self.container and self.container not in CONTAINERS:
            raise InputError(f"--container {self.container}: expected one of {', '.join(CONTAINERS)}")
        for path in self.mounts:
            if not Path(path).is_absolute() or "," in path or ":" in path:
                raise InputError(f"backend.mounts={path}: expected absolute paths of folders on every node")
        if self.lent_by not in LENT_BY:
            raise InputError(f"backend.lent_by={self.lent_by}: expected {' or '.join(LENT_BY)}")

    async def open(self, site: Site) -> "Backend":
        """The cluster whose commands are on this machine."""
        from stretto.backends.slurm.backend import open_slurm

        return await open_slurm(self, site.service_name, site.shared_folder())
