"""What the service asks of Slurm for all jobs, and how patient it is."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from stretto.agent.node import MAX_LOG_BYTES


@dataclass(frozen=True)
class SlurmOptions:
    """The words for sbatch that hold for every job unless its file says otherwise."""

    partitions: tuple[str, ...] = ()  # whose nodes are used; (): those of the default one
    account: str = ""
    qos: str = ""
    pass_env: tuple[str, ...] = ()  # names and patterns of our environment that workers find beside the usual
    environment: Mapping[str, str] = field(default_factory=dict)  # over ours, such as SLURM_CONF
    answer_s: float = (
        15.0  # the longest that a command may take; chosen: above Slurm's usual MessageTimeout of 10
    )
    pending_s: float = 60.0  # after which a slice that does not begin is withdrawn; chosen
    soon_s: float = 0.3  # between two looks while something is about to change; chosen
    quiet_s: float = 5.0  # and while nothing is; chosen
    max_log_bytes: int = MAX_LOG_BYTES  # that the logs of a job take in the shared directory; 0: any amount
    json: bool = True  # ask for JSON where Slurm has it
