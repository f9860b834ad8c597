"""How a service is to run, and which of its settings do not go together."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stretto import defaults
from stretto.backends.local.options import LocalOptions
from stretto.backends.options import BackendOptions, RunsAsUsers
from stretto.model import HALF_LIFE_S, InputError
from stretto.service.emulated.options import EmulatedOptions
from stretto.service.gpu_use import IdleRule
from stretto.service.http.certificates import TlsFiles
from stretto.service.http.oidc import OidcSettings
from stretto.service.http.rate_limits import Limits
from stretto.service.reconcile.controller import DEAD_AFTER_S
from stretto.service.retention.job_retention import RetentionPolicy
from stretto.service.service import OpenJobs
from stretto.service.uploads import UploadLimits
from stretto.service.webhooks import Targets, secrets_in

LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True)
class Config:
    """How a service is to run."""

    state: Path
    host: str = "127.0.0.1"
    port: int = 8700
    backend: BackendOptions = field(default_factory=LocalOptions)  # where workers run
    url: str = ""  # under which workers reach the service; "" = where it listens
    shared: Path | None = None  # a directory that all nodes see; None: the state directory
    policy: str = defaults.POLICY
    settings: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0
    store: str = ""  # a URL; "" = a file in the state directory
    open_on_loopback: bool = False
    limits: Limits = field(default_factory=Limits)
    log_file: str = "service.log"  # in the state directory unless absolute; "-" = stderr
    log_level: str = "info"
    eager: bool = True
    dead_after_s: float = DEAD_AFTER_S  # of silence of a node, until its workers count as lost; 0: never
    fair_share_half_life_s: float = HALF_LIFE_S  # of usage; 0: usage orders no job
    keep: RetentionPolicy = field(default_factory=RetentionPolicy)  # what of jobs that have ended
    most_open: OpenJobs = field(default_factory=OpenJobs)
    uploads: Path | None = None  # where uploads are kept; None: in the state directory
    upload_limits: UploadLimits = field(default_factory=UploadLimits)
    notify_allow: tuple[str, ...] = ()  # hosts and networks that webhooks may go to beside public ones
    webhook_secret_file: Path | None = None  # that webhooks are signed with; None: one made of the key
    idle: IdleRule = field(default_factory=IdleRule)  # which jobs count as idle holders
    lenders: Path | None = None  # a file that names lenders, their nodes, and where their need comes from
    begin_anew: bool = False  # without what of the log is lost
    standby: bool = False  # wait for the lead as long as another service has it
    key_file: Path | None = None  # the key that workers' tokens are made of; None: the state directory's
    secret_key: Path | None = None  # the key that secrets are sealed with; None: one in the state directory
    tls: TlsFiles | None = None  # the certificate that the service shows; None: plain HTTP
    oidc: OidcSettings | None = None  # an identity provider that vouches for users; None: tokens alone
    ca_file: Path | None = None  # authorities by which workers know the service; None: those of their system

    @property
    def emulated(self) -> EmulatedOptions | None:
        """What is emulated; None where workers really run."""
        return self.backend if isinstance(self.backend, EmulatedOptions) else None

    @property
    def run_as(self) -> tuple[str, ...]:
        """As which Unix users jobs run: see `read_accounts`; (): as the service's."""
        return self.backend.run_as if isinstance(self.backend, RunsAsUsers) else ()

    @property
    def pace(self) -> float:
        """Of the clock, which is real unless nothing else is."""
        return self.emulated.pace if self.emulated else 1.0

    @property
    def log(self) -> Path | None:
        """The file that logs go to; None: stderr."""
        return None if self.log_file == "-" else self.state / self.log_file

    def __post_init__(self) -> None:
        """Check how the values go together."""
        if self.log_level not in LEVELS:
            raise InputError(f"--log-level {self.log_level}: expected one of {', '.join(LEVELS)}")
        if self.run_as and self.open_on_loopback:
            raise InputError(
                "--run-as: not with --insecure-loopback, by which everybody here acts for everybody"
            )
        if self.open_on_loopback and not is_loopback(self.host):
            raise InputError(
                f"--insecure-loopback: expected --listen with an address of this machine only, such as "
                f"127.0.0.1:{self.port}, got {self.host}: a proxy or a tunnel could make everybody an admin"
            )
        if self.standby and self.emulated:
            raise InputError("--standby: not with --backend emulated, whose world ends with its service")
        if self.standby and self.begin_anew:
            raise InputError("--standby: not with --begin-anew, which only the service that leads may do")
        if self.oidc is not None and self.open_on_loopback:
            raise InputError("--oidc: not with --insecure-loopback, by which nobody has to log in")
        if self.tls is not None and self.url.startswith("http://"):
            raise InputError(f"--url {self.url}: expected https:// beside --tls-certificate")
        if self.webhook_secret_file is not None:
            secrets_in(self.webhook_secret_file)
        Targets.of(self.notify_allow)  # what is wrong with the words is said before anything is made


def is_loopback(address: str) -> bool:
    """Whether an address or a name is of this machine only."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
