"""`stretto serve`: the service on this machine, or on top of a cluster.

A new option is a field of one of the groups below, which stand in the order of `--help`.
"""

from contextlib import suppress
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stretto import defaults
from stretto.agent.node import MAX_LOG_BYTES
from stretto.cli import options
from stretto.cli.config_file import take_config
from stretto.cli.option_classes import BackendValues, with_option_classes
from stretto.cli.printing import say
from stretto.cli.serve_uploads import Uploads
from stretto.service.backend_registry import backend_options

if TYPE_CHECKING:
    from stretto.service.gpu_use import IdleRule
    from stretto.service.http.certificates import TlsFiles
    from stretto.service.http.oidc import OidcSettings
    from stretto.service.http.rate_limits import Limits
    from stretto.service.retention.job_retention import RetentionPolicy
    from stretto.service.service import OpenJobs

Settings = Annotated[
    list[str],
    typer.Option(
        "--set", metavar="SPACE.KEY=VALUE", help="A setting of sim, policy, estimate, place, lend or backend."
    ),
]
LEAST_LOG_BYTES, MOST_LOG_BYTES = 1 << 20, 1 << 60  # that a job may be bound to; chosen


# ── the options, in groups ────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class ConfigFile:
    """Where options come from that the command line does not give."""

    config: Annotated[
        Path | None,
        typer.Option(
            help="A YAML file of these options by name; the command line takes precedence.",
            metavar="FILE",
            callback=take_config,
            is_eager=True,
        ),
    ] = None


@dataclass(frozen=True)
class Place:
    """Where the service runs, and where its workers do."""

    state: Annotated[Path, typer.Option(help="Where the log, keys and checkpoints are kept.")] = Path(
        "stretto-state"
    )
    listen: Annotated[str, typer.Option(help="ADDRESS:PORT; port 0 takes a free one.")] = "127.0.0.1:8700"
    backend: Annotated[
        str, typer.Option(help="Where workers run: local, ray, slurm, kubernetes or emulated.")
    ] = "local"
    url: Annotated[
        str, typer.Option(help="The service's address for workers on other machines; else that of --listen.")
    ] = ""
    shared: Annotated[
        Path | None,
        typer.Option(help="A directory that all nodes see, for checkpoints; else the state directory."),
    ] = None
    lenders: Annotated[
        Path | None,
        typer.Option(
            help="A YAML file that names lenders, their nodes, and what says their need.", metavar="FILE"
        ),
    ] = None

    def address(self) -> tuple[str, int]:
        """Host and port of --listen. Raises InputError."""
        from stretto.errors import InputError

        host, _, port = self.listen.rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65535:
            raise InputError(f"--listen {self.listen}: expected ADDRESS:PORT")
        return host.strip("[]"), int(port)


@dataclass(frozen=True)
class Decisions:
    """What decides which jobs run."""

    policy: options.Policy = defaults.POLICY
    settings: Settings = field(default_factory=list)
    seed: options.Seed = 0

    def settings_by_space(self) -> dict[str, dict[str, str]]:
        """Of the backend by field, under "" of all others by SPACE.KEY. Raises InputError."""
        from stretto.experiments.spec import SPACES, parse_settings

        settings = parse_settings(self.settings, (*SPACES, "backend"))
        of_backend = {key: value for key, value in settings.items() if key.startswith("backend.")}
        return {
            "backend": {key.removeprefix("backend."): value for key, value in of_backend.items()},
            "": {key: value for key, value in settings.items() if key not in of_backend},
        }


@dataclass(frozen=True)
class Store:
    """Where the event log is kept."""

    store: Annotated[
        str, typer.Option(help="URL of a database; else a SQLite file in the state directory.")
    ] = ""
    store_file: Annotated[
        Path | None,
        typer.Option(
            help="A file with the URL of --store, so that no list of processes shows it.", metavar="FILE"
        ),
    ] = None

    def store_url(self) -> str:
        """The URL of the store, from the option or from the only line of a file. Raises InputError."""
        from stretto.errors import InputError

        if self.store_file is None:
            return self.store
        if self.store:
            raise InputError("--store-file: expected instead of --store, not beside it")
        try:
            lines = self.store_file.read_text(encoding="utf-8").split()
        except (OSError, UnicodeDecodeError) as wrong:
            why = wrong.strerror if isinstance(wrong, OSError) else "it is no text"
            raise InputError(f"--store-file {self.store_file}: cannot be read: {why}") from None
        if len(lines) != 1:
            raise InputError(
                f"--store-file {self.store_file}: expected one line, the URL of a database, got {len(lines)}"
            )
        return lines[0]


@dataclass(frozen=True)
class Workers:
    """As which users workers run, and what they inherit."""

    run_as: Annotated[
        list[str],
        typer.Option(
            help="The Unix users of jobs, if root starts the service. user: those of the same names; "
            "NAME=UNIX-USER or NAME=UID[:GID]: one user. May be given several times.",
            metavar="WHOM",
        ),
    ] = field(default_factory=list)
    pass_env: Annotated[
        list[str],
        typer.Option(
            help="A variable of the service's environment to pass to jobs, or several with * and ?; may be "
            "given several times.",
            metavar="NAME",
        ),
    ] = field(default_factory=list)


@dataclass(frozen=True)
class Rounds:
    """When the policy decides, and on what evidence."""

    rounds_only: Annotated[
        bool,
        typer.Option(
            "--rounds-only", help="Ask a policy of rounds at rounds only, not at arrivals and ends."
        ),
    ] = False
    dead_after: Annotated[
        str,
        typer.Option(
            help="Heartbeat timeout: after it the workers of a silent node count as lost; 0: never."
        ),
    ] = "5m"
    fair_share_half_life: Annotated[
        str,
        typer.Option(
            help="Age at which used GPU time counts half in fair share; off: jobs come by submission."
        ),
    ] = "7d"

    def dead_after_s(self) -> float:
        """The heartbeat timeout; 0: never. Raises InputError."""
        from stretto.errors import InputError
        from stretto.jobfile.quantities import duration_s

        try:
            return 0.0 if self.dead_after == "0" else duration_s(self.dead_after)
        except ValueError:
            raise InputError(
                f"--dead-after {self.dead_after}: expected a duration like 90s or 5m, or 0"
            ) from None

    def fair_share_half_life_s(self) -> float:
        """The half-life of usage; 0: usage orders nothing. Raises InputError."""
        from stretto.errors import InputError
        from stretto.jobfile.quantities import duration_s

        text = self.fair_share_half_life
        if text == "off":
            return 0.0
        with suppress(ValueError):
            if (half_life_s := duration_s(text)) > 0:
                return half_life_s
        raise InputError(f"--fair-share-half-life {text}: expected a duration above 0 like 7d or 12h, or off")


@dataclass(frozen=True)
class Retention:
    """What is kept of jobs, and for how long."""

    keep_ended: Annotated[
        str, typer.Option(help="Retention of ended jobs in memory; the store keeps them after that.")
    ] = "1h"
    keep_logs: Annotated[
        str, typer.Option(help="Retention of the logs of ended jobs, like 14d, or forever.")
    ] = "30d"
    max_log_size: Annotated[
        str,
        typer.Option(
            help="Limit of a job's logs on each machine; the oldest part is dropped. any: no limit."
        ),
    ] = "1GiB"
    keep_checkpoints: Annotated[
        str,
        typer.Option(
            help="Garbage collection of checkpoints: their age after the job's end, like 60d, or forever."
        ),
    ] = "forever"

    keep_uploads: Annotated[
        str, typer.Option(help="Retention of uploads after the end of the last job that names them.")
    ] = "7d"

    def retention_policy(self) -> "RetentionPolicy":
        """What of jobs that have ended is kept, in seconds. Raises InputError."""
        from stretto.service.retention.job_retention import keep_of

        return keep_of(self.keep_ended, self.keep_logs, self.keep_checkpoints)

    def max_log_bytes(self) -> int:
        """The limit of a job's logs on each machine; 0: any amount. Raises InputError."""
        from stretto.errors import InputError
        from stretto.jobfile.quantities import memory_gb

        try:
            size = round(memory_gb(self.max_log_size) * 1e9) if self.max_log_size != "any" else 0
        except ValueError:
            size = -1
        if not LEAST_LOG_BYTES <= size <= MOST_LOG_BYTES and self.max_log_size != "any":
            raise InputError(
                f"--max-log-size {self.max_log_size}: expected 1MiB or more, like 500MB or 2GiB, or any"
            )
        return size


@dataclass(frozen=True)
class Startup:
    """What an administrator allows at this start."""

    begin_anew: Annotated[
        bool,
        typer.Option(
            "--begin-anew",
            help="Start although part of the log is lost, or a backup was restored; prints what is lost.",
        ),
    ] = False
    standby: Annotated[
        bool,
        typer.Option(
            "--standby",
            help="Stand by while another service leads: follow its log, answer probes, and take over when it "
            "ends.",
        ),
    ] = False
    key_file: Annotated[
        Path | None,
        typer.Option(
            help="A file with the key that tokens of workers are made of, for a standby on another machine; "
            "else `key` in the state directory.",
            metavar="FILE",
        ),
    ] = None
    secret_key: Annotated[
        Path | None,
        typer.Option(
            help="A file with the key that secrets are sealed with; else that of --key-file; else "
            "`secret-key` in the state directory.",
            metavar="FILE",
            envvar="STRETTO_SECRET_KEY",
        ),
    ] = None
    oidc: Annotated[
        Path | None,
        typer.Option(
            help="A YAML file that names an identity provider (OpenID Connect), and the roles of its groups.",
            metavar="FILE",
        ),
    ] = None
    insecure_loopback: Annotated[
        bool,
        typer.Option("--insecure-loopback", help="Make everybody on this machine an admin, without tokens."),
    ] = False

    def oidc_settings(self) -> "OidcSettings | None":
        """Of the identity provider; None: there is none. Raises InputError."""
        from stretto.service.http.oidc import read_oidc

        return read_oidc(self.oidc) if self.oidc is not None else None


@dataclass(frozen=True)
class Encryption:
    """The certificate that the service shows, and how workers know it."""

    tls_certificate: Annotated[
        Path | None,
        typer.Option(
            help="Serve HTTPS with this certificate (PEM, those of its authorities after it); read again "
            "when it changes.",
            metavar="FILE",
        ),
    ] = None
    tls_key: Annotated[
        Path | None, typer.Option(help="The private key of --tls-certificate, in PEM.", metavar="FILE")
    ] = None
    ca_file: Annotated[
        Path | None,
        typer.Option(
            help="Certificates of the authorities by which workers know the service; else those of their "
            "system.",
            metavar="FILE",
        ),
    ] = None

    def files(self) -> "TlsFiles | None":
        """Where certificate and key are; None: plain HTTP. Raises InputError for one without the other."""
        from stretto.errors import InputError
        from stretto.service.http.certificates import TlsFiles

        if self.tls_certificate is None and self.tls_key is None:
            return None
        if self.tls_key is None:
            raise InputError("--tls-certificate: expected --tls-key beside it")
        if self.tls_certificate is None:
            raise InputError("--tls-key: expected --tls-certificate beside it")
        return TlsFiles(self.tls_certificate.absolute(), self.tls_key.absolute())


@dataclass(frozen=True)
class Bounds:
    """How much users and other machines may ask for."""

    submit_rate: Annotated[
        float, typer.Option(help="Rate limit: submissions a second of one user in the long run.")
    ] = 20.0
    submit_burst: Annotated[
        int, typer.Option(min=1, help="Rate limit: submissions of one user at once after a quiet time.")
    ] = 500
    notify_allow: Annotated[
        list[str],
        typer.Option(
            help="A host or network that webhooks may call beside public addresses; may be given several "
            "times.",
            metavar="HOST",
        ),
    ] = field(default_factory=list)
    webhook_secret_file: Annotated[
        Path | None,
        typer.Option(
            help="A file with the secret that webhooks are signed with, or with two while one is replaced; "
            "else one that is made of the key.",
            metavar="FILE",
        ),
    ] = None
    max_open_jobs: Annotated[
        int, typer.Option(min=1, help="Most jobs that have not ended; each task of an array counts.")
    ] = 100_000
    max_open_jobs_per_user: Annotated[int, typer.Option(min=1, help="Most of these jobs of one user.")] = (
        20_000
    )
    max_connections: Annotated[
        int,
        typer.Option(min=1, help="Most connections at once; fewer if the system allows fewer open files."),
    ] = 4096
    max_connections_per_address: Annotated[
        int, typer.Option(min=1, help="Most of these connections from one other machine.")
    ] = 1024

    idle_below: Annotated[
        float,
        typer.Option(help="Share of the time: a job whose GPUs are busy for less is an idle holder."),
    ] = 0.05
    idle_after: Annotated[
        str, typer.Option(help="Once they have been for so long, where nodes say how busy GPUs are.")
    ] = "10m"

    def idle_rule(self) -> "IdleRule":
        """Which jobs count as idle holders. Raises InputError."""
        from stretto.errors import InputError
        from stretto.jobfile.quantities import duration_s
        from stretto.service.gpu_use import IdleRule

        if not 0 < self.idle_below <= 1:
            raise InputError(f"--idle-below {self.idle_below:g}: expected a share above 0, up to 1")
        try:
            after_s = duration_s(self.idle_after)
        except ValueError:
            raise InputError(f"--idle-after {self.idle_after}: expected a duration like 10m or 1h") from None
        return IdleRule(self.idle_below, after_s)

    def limits(self) -> "Limits":
        """Bounds of the interface. Raises InputError."""
        from stretto.errors import InputError
        from stretto.service.http.rate_limits import Limits

        if not (isfinite(self.submit_rate) and self.submit_rate > 0):
            raise InputError(f"--submit-rate {self.submit_rate:g}: expected a number of submissions above 0")
        return Limits(
            submits_per_s=self.submit_rate,
            submit_burst=self.submit_burst,
            connections=self.max_connections,
            connections_per_address=self.max_connections_per_address,
        )

    def most_open(self) -> "OpenJobs":
        """Most jobs that have not ended."""
        from stretto.service.service import OpenJobs

        return OpenJobs(self.max_open_jobs_per_user, self.max_open_jobs)


@dataclass(frozen=True)
class ServiceLog:
    """The service's own log."""

    log_file: Annotated[
        str, typer.Option(help="The service's own log, a JSON object a line; - is stderr.", metavar="FILE")
    ] = "service.log"
    log_level: Annotated[
        str, typer.Option(help="Level of the service's own log: debug, info, warning or error.")
    ] = "info"


# ── the command ───────────────────────────────────────────────────────────────────────────────────


@with_option_classes
def serve(
    *,
    config: ConfigFile,  # its callback has made the file's values the defaults of all others
    place: Place,
    backend_values: BackendValues,
    decisions: Decisions,
    store: Store,
    workers: Workers,
    rounds: Rounds,
    retention: Retention,
    uploads: Uploads,
    startup: Startup,
    encryption: Encryption,
    bounds: Bounds,
    service_log: ServiceLog,
) -> None:
    """Schedule real jobs until interrupted. Running jobs go on; the next start adopts them."""
    import asyncio

    from stretto.errors import InputError

    try:
        from stretto.service.config import Config
        from stretto.service.gc_tuning import put_off

        with put_off():  # modules stay: to look for garbage among them is a tenth of this time
            from stretto.service.main import serve
    except ModuleNotFoundError as missing:
        raise InputError(f"serve needs {missing.name}: install stretto[serve]") from None
    host, port = place.address()
    of_workers = _values_of_workers(workers, retention)
    settings = decisions.settings_by_space()
    configured = Config(
        state=place.state.absolute(),
        host=host,
        port=port,
        backend=backend_options(place.backend, {**backend_values, **of_workers}, settings["backend"]),
        url=place.url,
        shared=place.shared,
        lenders=place.lenders,
        policy=decisions.policy,
        settings=settings[""],
        seed=decisions.seed,
        store=store.store_url(),
        open_on_loopback=startup.insecure_loopback,
        limits=bounds.limits(),
        log_file=service_log.log_file,
        log_level=service_log.log_level,
        eager=not rounds.rounds_only,
        dead_after_s=rounds.dead_after_s(),
        fair_share_half_life_s=rounds.fair_share_half_life_s(),
        begin_anew=startup.begin_anew,
        standby=startup.standby,
        key_file=startup.key_file,
        secret_key=startup.secret_key,
        tls=encryption.files(),
        ca_file=encryption.ca_file,
        oidc=startup.oidc_settings(),
        keep=retention.retention_policy(),
        uploads=uploads.uploads,
        upload_limits=uploads.limits(retention.keep_uploads),
        most_open=bounds.most_open(),
        idle=bounds.idle_rule(),
        notify_allow=tuple(bounds.notify_allow),
        webhook_secret_file=bounds.webhook_secret_file,
    )

    async def run() -> None:
        announced: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        announced.add_done_callback(lambda url: _announce(url.result(), place, decisions, startup))
        if others := await serve(configured, announced):
            say(f"{others}; the next service with this state directory adopts them")

    asyncio.run(run())


def _values_of_workers(workers: Workers, retention: Retention) -> dict[str, object]:
    """Values that only some backends take, by option, where they are not the defaults. Raises InputError."""
    most_log_bytes = retention.max_log_bytes()
    values: dict[str, object] = {}
    if workers.run_as:
        values["--run-as"] = tuple(workers.run_as)
    if workers.pass_env:
        values["--pass-env"] = tuple(workers.pass_env)
    if most_log_bytes != MAX_LOG_BYTES:
        values["--max-log-size"] = most_log_bytes
    return values


def _announce(url: str, place: Place, decisions: Decisions, startup: Startup) -> None:
    """Say where the service answers, and which users may ask it."""
    from stretto.service.main import FIRST_TOKEN

    say(f"listening on {url}, policy {decisions.policy}")
    if startup.insecure_loopback:
        say(
            "--insecure-loopback: everybody on this machine is an admin, and so is everybody who "
            "comes through a proxy or a tunnel on it"
        )
    else:
        say(f"every request needs a token; the first admin's is in {place.state / FIRST_TOKEN}")
