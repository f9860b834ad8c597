"""`stretto serve`: the service on this machine, or on top of a cluster."""

from math import isfinite
from pathlib import Path
from typing import Annotated

import typer

from stretto.agent.node import MAX_LOG_BYTES
from stretto.cli import options
from stretto.cli.backend_options import BackendValues, with_backend_options
from stretto.cli.config_file import take_config
from stretto.cli.printing import say

Settings = Annotated[
    list[str],
    typer.Option(
        "--set", metavar="SPACE.KEY=VALUE", help="A setting of sim, policy, estimate, place, lend or backend."
    ),
]
LEAST_LOG_BYTES, MOST_LOG_BYTES = 1 << 20, 1 << 60  # that a job may be bound to; chosen


@with_backend_options
def serve(
    config: Annotated[
        Path | None,
        typer.Option(
            help="A YAML file of these options by name; the command line takes precedence.",
            metavar="FILE",
            callback=take_config,
            is_eager=True,
        ),
    ] = None,
    state: Annotated[Path, typer.Option(help="Where the log, keys and checkpoints are kept.")] = Path(
        "stretto-state"
    ),
    listen: Annotated[str, typer.Option(help="ADDRESS:PORT; port 0 takes a free one.")] = "127.0.0.1:8700",
    backend: Annotated[
        str, typer.Option(help="Where workers run: local, ray, slurm, or emulated.")
    ] = "local",
    url: Annotated[
        str, typer.Option(help="The service's address for workers on other machines; else that of --listen.")
    ] = "",
    shared: Annotated[
        Path | None,
        typer.Option(help="A directory that all nodes see, for checkpoints; else the state directory."),
    ] = None,
    backend_values: BackendValues = None,  # one option for each, as the backends declare them
    policy: options.Policy = "sia",
    settings: Settings = [],  # noqa: B006  (typer wants a plain default)
    seed: options.Seed = 0,
    store: Annotated[
        str, typer.Option(help="URL of a database; else a SQLite file in the state directory.")
    ] = "",
    store_file: Annotated[
        Path | None,
        typer.Option(
            help="A file with the URL of --store, so that no list of processes shows it.", metavar="FILE"
        ),
    ] = None,
    run_as: Annotated[
        list[str],
        typer.Option(
            help="The Unix users of jobs, if root starts the service. user: those of the same names; "
            "NAME=UNIX-USER or NAME=UID[:GID]: one user. May be given several times.",
            metavar="WHOM",
        ),
    ] = [],  # noqa: B006  (typer wants a plain default)
    pass_env: Annotated[
        list[str],
        typer.Option(
            help="A variable of the service's environment to pass to jobs, or several with * and ?; may be "
            "given several times.",
            metavar="NAME",
        ),
    ] = [],  # noqa: B006  (typer wants a plain default)
    rounds_only: Annotated[
        bool,
        typer.Option(
            "--rounds-only", help="Ask a policy of rounds at rounds only, not at arrivals and ends."
        ),
    ] = False,
    dead_after: Annotated[
        str,
        typer.Option(
            help="Heartbeat timeout: after it the workers of a silent node count as lost; 0: never."
        ),
    ] = "5m",
    fair_share_half_life: Annotated[
        str,
        typer.Option(
            help="Age at which used GPU time counts half in fair share; off: jobs come by submission."
        ),
    ] = "7d",
    keep_ended: Annotated[
        str, typer.Option(help="Retention of ended jobs in memory; the store keeps them after that.")
    ] = "1h",
    keep_logs: Annotated[
        str, typer.Option(help="Retention of the logs of ended jobs, like 14d, or forever.")
    ] = "30d",
    max_log_size: Annotated[
        str,
        typer.Option(
            help="Limit of a job's logs on each machine; the oldest part is dropped. any: no limit."
        ),
    ] = "1GiB",
    keep_checkpoints: Annotated[
        str,
        typer.Option(
            help="Garbage collection of checkpoints: their age after the job's end, like 60d, or forever."
        ),
    ] = "forever",
    begin_anew: Annotated[
        bool,
        typer.Option(
            "--begin-anew",
            help="Start although part of the log is lost, or a backup was restored; prints what is lost.",
        ),
    ] = False,
    insecure_loopback: Annotated[
        bool,
        typer.Option("--insecure-loopback", help="Make everybody on this machine an admin, without tokens."),
    ] = False,
    submit_rate: Annotated[
        float, typer.Option(help="Rate limit: submissions a second of one user in the long run.")
    ] = 20.0,
    submit_burst: Annotated[
        int, typer.Option(min=1, help="Rate limit: submissions of one user at once after a quiet time.")
    ] = 500,
    notify_allow: Annotated[
        list[str],
        typer.Option(
            help="A host or network that webhooks may call beside public addresses; may be given several "
            "times.",
            metavar="HOST",
        ),
    ] = [],  # noqa: B006  (typer wants a plain default)
    max_open_jobs: Annotated[
        int, typer.Option(min=1, help="Most jobs that have not ended; each task of an array counts.")
    ] = 100_000,
    max_open_jobs_per_user: Annotated[
        int, typer.Option(min=1, help="Most of these jobs of one user.")
    ] = 20_000,
    max_connections: Annotated[
        int,
        typer.Option(min=1, help="Most connections at once; fewer if the system allows fewer open files."),
    ] = 4096,
    max_connections_per_address: Annotated[
        int, typer.Option(min=1, help="Most of these connections from one other machine.")
    ] = 1024,
    log_file: Annotated[
        str, typer.Option(help="The service's own log, a JSON object a line; - is stderr.", metavar="FILE")
    ] = "service.log",
    log_level: Annotated[
        str, typer.Option(help="Level of the service's own log: debug, info, warning or error.")
    ] = "info",
) -> None:
    """Schedule real jobs until interrupted. Running jobs go on; the next start adopts them."""
    import asyncio

    from stretto.model import InputError

    try:
        from stretto.service.backend_registry import backend_options
        from stretto.service.config import Config
        from stretto.service.http.rate_limits import Limits
        from stretto.service.main import FIRST_TOKEN, serve
        from stretto.service.retention.job_retention import keep_of
        from stretto.service.service import OpenJobs
    except ModuleNotFoundError as missing:
        raise InputError(f"serve needs {missing.name}: install stretto[serve]") from None
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise InputError(f"--listen {listen}: expected ADDRESS:PORT")
    most_log_bytes = _bytes_of(max_log_size)
    by_option = {
        **(backend_values or {}),
        **({"--run-as": tuple(run_as)} if run_as else {}),
        **({"--pass-env": tuple(pass_env)} if pass_env else {}),
        **({"--max-log-size": most_log_bytes} if most_log_bytes != MAX_LOG_BYTES else {}),
    }
    by_space = _by_space(settings)
    configured = Config(
        state=state.absolute(),
        host=host.strip("[]"),
        port=int(port),
        backend=backend_options(backend, by_option, by_space["backend"]),
        url=url,
        shared=shared,
        policy=policy,
        settings=by_space[""],
        seed=seed,
        store=_store_url(store, store_file),
        open_on_loopback=insecure_loopback,
        limits=Limits(
            submits_per_s=_rate(submit_rate),
            submit_burst=submit_burst,
            connections=max_connections,
            connections_per_address=max_connections_per_address,
        ),
        log_file=log_file,
        log_level=log_level,
        eager=not rounds_only,
        dead_after_s=_seconds_of(dead_after),
        fair_share_half_life_s=_half_life_of(fair_share_half_life),
        begin_anew=begin_anew,
        keep=keep_of(keep_ended, keep_logs, keep_checkpoints),
        most_open=OpenJobs(max_open_jobs_per_user, max_open_jobs),
        notify_allow=tuple(notify_allow),
    )

    async def run() -> None:
        announced: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        announced.add_done_callback(lambda done: say(f"listening on {done.result()}, policy {policy}"))
        if insecure_loopback:
            announced.add_done_callback(
                lambda _: say(
                    "--insecure-loopback: everybody on this machine is an admin, and so is everybody who "
                    "comes through a proxy or a tunnel on it"
                )
            )
        else:
            announced.add_done_callback(
                lambda _: say(f"every request needs a token; the first admin's is in {state / FIRST_TOKEN}")
            )
        if others := await serve(configured, announced):
            say(f"{others}; the next service with this state directory adopts them")

    asyncio.run(run())


def _by_space(words: list[str]) -> dict[str, dict[str, str]]:
    """What --set says: of the backend by field, under "" of all others by SPACE.KEY. Raises InputError."""
    from stretto.experiments.spec import SPACES, parse_settings

    settings = parse_settings(words, (*SPACES, "backend"))
    of_backend = {key: value for key, value in settings.items() if key.startswith("backend.")}
    return {
        "backend": {key.removeprefix("backend."): value for key, value in of_backend.items()},
        "": {key: value for key, value in settings.items() if key not in of_backend},
    }


def _store_url(url: str, file: Path | None) -> str:
    """The URL of the store, from the option or from the only line of a file."""
    from stretto.model import InputError

    if file is None:
        return url
    if url:
        raise InputError("--store-file: expected instead of --store, not beside it")
    try:
        lines = file.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as wrong:
        why = wrong.strerror if isinstance(wrong, OSError) else "it is no text"
        raise InputError(f"--store-file {file}: cannot be read: {why}") from None
    if len(lines) != 1:
        raise InputError(f"--store-file {file}: expected one line, the URL of a database, got {len(lines)}")
    return lines[0]


def _rate(per_s: float) -> float:
    """Submissions a second. Raises InputError."""
    from stretto.model import InputError

    if not (isfinite(per_s) and per_s > 0):
        raise InputError(f"--submit-rate {per_s:g}: expected a number of submissions above 0")
    return per_s


def _seconds_of(dead_after: str) -> float:
    from stretto.jobfile.quantities import duration_s
    from stretto.model import InputError

    try:
        return 0.0 if dead_after == "0" else duration_s(dead_after)
    except ValueError:
        raise InputError(f"--dead-after {dead_after}: expected a duration like 90s or 5m, or 0") from None


def _bytes_of(max_log_size: str) -> int:
    from stretto.jobfile.quantities import memory_gb
    from stretto.model import InputError

    try:
        size = round(memory_gb(max_log_size) * 1e9) if max_log_size != "any" else 0
    except ValueError:
        size = -1
    if not LEAST_LOG_BYTES <= size <= MOST_LOG_BYTES and max_log_size != "any":
        raise InputError(f"--max-log-size {max_log_size}: expected 1MiB or more, like 500MB or 2GiB, or any")
    return size


def _half_life_of(text: str) -> float:
    from stretto.jobfile.quantities import duration_s
    from stretto.model import InputError

    try:
        half_life_s = 0.0 if text == "off" else duration_s(text)
        if text == "off" or half_life_s > 0:
            return half_life_s
    except ValueError:
        pass
    raise InputError(f"--fair-share-half-life {text}: expected a duration above 0 like 7d or 12h, or off")
