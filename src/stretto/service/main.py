"""A service from its configuration to its last request."""

import asyncio
import contextlib
import errno
import hmac
import logging
import os
import secrets as random
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import uvicorn

from stretto.agent import open_files, unix_users
from stretto.agent.unix_users import Accounts, read_accounts
from stretto.backends.local.options import AGENT
from stretto.backends.protocol import Backend
from stretto.client.trust import certificates_in
from stretto.jobfile.to_job import DEADLINE_WORTH
from stretto.lend import CapacityLoaning
from stretto.model import DEFAULT_QUEUE, InputError, StrettoError
from stretto.scheduler.round import Scheduler
from stretto.service.config import Config, is_loopback
from stretto.service.emulated.options import ServiceSite
from stretto.service.eventlog import Mark, Reached, Store, open_store, reached_in
from stretto.service.eventlog.clock import Clock, read_clocks, resumed
from stretto.service.eventlog.clock_watch import ClockWatch
from stretto.service.eventlog.writer import LogWriter
from stretto.service.gc_tuning import collect_all_periodically, look_at_the_young, put_off
from stretto.service.http.app import app_of
from stretto.service.http.certificates import CERTIFICATE, Certificates, why_distrusted
from stretto.service.http.connections import Listener
from stretto.service.http.encrypted import config_with
from stretto.service.http.rate_limits import Limits
from stretto.service.http.routes.tokens import first_admin, is_admin
from stretto.service.http.server import end_requests
from stretto.service.leadership import Leadership
from stretto.service.lending.feeds import DEMAND, Lender, changed_lenders, lenders_of_cluster, read_lenders
from stretto.service.log_loss import incarnated, what_is_lost, workers_on_disk
from stretto.service.reconcile.controller import Reconciler
from stretto.service.reconcile.worker_env import WorkerContext
from stretto.service.recovery import Recovery
from stretto.service.scheduling.batch_by_speed import divided_by_speed
from stretto.service.scheduling.loop import SchedulingLoop
from stretto.service.scheduling.scheduler import evidence_that_counts, scheduler_of, with_resolved_settings
from stretto.service.sealed_secrets import SECRET_KEY, SealedSecrets, SecretKey
from stretto.service.service import Service
from stretto.service.signals import StopSignals
from stretto.service.standby import Promotion, stand_by
from stretto.service.state.events import Began, Configured, Event, LeadTaken, QueueSet
from stretto.service.state.state import State
from stretto.service.state.status import going_on
from stretto.service.state_snapshots import StateSnapshots
from stretto.service.structured_logs import structured_logs
from stretto.service.uploads import UPLOADS, UploadStore
from stretto.service.webhooks import PORTS, Secrets, Targets

if TYPE_CHECKING:
    from stretto.service.http.oidc.provider import Provider

DATABASE, KEY, CHECKPOINTS, WORKDIRS = "stretto.db", "key", "checkpoints", "workdirs"
MARK = "log.mark"  # how far the log has come, wherever it is; not to be taken for a part of the database
KEY_BYTES = 32
FIRST_TOKEN = "admin-token"  # of whoever starts the first service of a log; only they can read it
LEAD_WAIT_S = 10.0  # for a service that is just ending; chosen
WAITING_CONNECTIONS = 512
CLOSED_S = 5.0  # for connections that are being closed at the end; chosen
LEAST_CONNECTIONS = 24  # and what a start opens beside; with fewer nothing can be served; chosen
TURN_S = 0.0005  # of a thread; chosen: requests are answered between the steps of a decision, which take long

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prepared:
    """What is checked and opened before a service touches its log."""

    world: Mapping[str, str]  # settings of the emulated world
    lenders: tuple[Lender, ...]
    configured: Configured
    scheduler: Scheduler
    accounts: Accounts | None
    listening: Listener
    here: str  # where it listens
    url: str  # where workers find it
    reached: Reached | None  # how far the log had come, as far as this machine knows
    certificates: Certificates | None  # that the service shows; None: plain HTTP
    provider: "Provider | None"  # that vouches for users; None: tokens alone
    authorities: str  # certificates that workers verify it by; "": those of their system


async def serve(config: Config, announce: "asyncio.Future[str] | None" = None) -> str:
    """Run until a signal or cancellation; which process goes on without us, "" where none does."""
    prepared = _prepare(config)
    reached = prepared.reached
    has_begun = reached is not None and reached.seq > 0
    store = open_store(config.store or config.state / DATABASE, begun=has_begun and not config.begin_anew)
    with (
        store,
        contextlib.closing(prepared.listening),
        structured_logs(config.log, config.log_level),
        contextlib.ExitStack() as cleanup,
    ):
        if not config.standby:  # which may stand by for weeks
            cleanup.enter_context(put_off())
        promotion = await _promotion(config, prepared, store)
        if promotion is None:
            return ""
        cleanup.enter_context(put_off())  # until all is there that stays
        try:
            return await _serve_as_leader(config, prepared, store, promotion, cleanup, announce)
        finally:
            promotion.lead.release()


def _prepare(config: Config) -> Prepared:
    """Everything that can be wrong with the settings and the machine, before anything is made."""
    world, settings = _of_the_world(config)
    lenders = _lenders_of(config)
    sys.setswitchinterval(TURN_S)
    configured = _configured(config, settings)
    scheduler = scheduler_of(configured)  # what is wrong with the words is said before anything is made
    configured = with_resolved_settings(configured, scheduler)
    accounts = read_accounts(config.run_as)
    certificates = Certificates(config.tls) if config.tls is not None else None
    authorities = certificates_in(config.ca_file) if config.ca_file is not None else ""
    if config.secret_key is not None:
        secret_key_of(config).check()
    _make_usable(config)
    _raise_limits()
    listening = _listen(config.host, config.port)
    scheme, host = (
        "https" if certificates else "http",
        f"[{config.host}]" if ":" in config.host else config.host,
    )
    here = f"{scheme}://{host}:{listening.getsockname()[1]}"
    url = config.url.rstrip("/") or here
    reached = reached_in(config.state / MARK)
    return Prepared(
        *(world, lenders, configured, scheduler, accounts, listening, here, url, reached),
        *(certificates, _provider_of(config), authorities),
    )


async def _promotion(config: Config, prepared: Prepared, store: Store) -> Promotion | None:
    """The lead, at once or after standing by; None where a signal came first. Raises LedByOther."""

    def recover() -> Recovery:
        return Recovery(store, _key(config), prepared.configured, prepared.scheduler)

    def announce(leader: str) -> None:
        print(f"standing by on {prepared.here}: {leader} leads", file=sys.stderr, flush=True)

    if config.standby:
        store.check_whole(prepared.reached)
        promotion = await stand_by(
            store,
            recover,
            prepared.listening,
            prepared.reached,
            config.limits,
            announce,
            prepared.certificates,
        )
        if promotion is not None:
            try:
                store.check_whole(promotion.reached)
            except BaseException:
                promotion.lead.release()
                raise
        return promotion
    lead = store.lead(LEAD_WAIT_S)  # only the service that leads may write the log
    try:
        reached = reached_in(config.state / MARK)  # only now: the service before us may just have ended
        for line in what_is_lost(store, reached, config.begin_anew):
            print(line, file=sys.stderr, flush=True)
        return Promotion(lead, recover(), reached)
    except BaseException:
        lead.release()
        raise


async def _serve_as_leader(
    config: Config,
    prepared: Prepared,
    store: Store,
    promotion: Promotion,
    cleanup: contextlib.ExitStack,
    announce: "asyncio.Future[str] | None",
) -> str:
    """From the log to the last request; which process goes on without us."""
    # 1. The log. What it gives is the state.
    configured, scheduler, reached = prepared.configured, prepared.scheduler, promotion.reached
    promotion.recovery.read_on()
    state, memory = promotion.recovery.finished()
    clock = _clock(state, config.pace)
    key = _key(config)
    copied = reached is None and bool(store.chain_of(state.seq))  # another directory had its mark
    why = "begun anew" if config.begin_anew else "copied from elsewhere" if copied else ""
    mark = Mark(config.state / MARK)
    cleanup.callback(mark.close)
    log_writer = LogWriter(store, state, clock, mark)
    watch = ClockWatch(log_writer, clock, read_clocks)
    lenders_now = changed_lenders(prepared.lenders, state)  # refused before anything is recorded
    await _record_now(log_writer, *_first_events(config, configured, state, clock, watch))
    if lenders_now:
        await _record_now(log_writer, *lenders_now)

    # 2. The backend, and ids of workers that it shows although the log does not know them.
    shared = (config.shared or config.state).absolute()
    context = WorkerContext(
        *(prepared.url, key, shared / CHECKPOINTS, shared / WORKDIRS, prepared.accounts),
        secrets=await _secrets(config, store),
        uploads=UploadStore((config.uploads or config.state / UPLOADS).absolute(), config.upload_limits),
        authorities=prepared.authorities,
    )
    backend = await _open_backend(config, prepared.world, scheduler, log_writer, key)
    listed = [*workers_on_disk(config.state / AGENT, context.checkpoints)]
    listed += [worker.id for worker in await backend.workers()]
    if (anew := incarnated(state, reached, listed, why)) is not None:
        logger.warning("ids up to %d may have been given: %s", anew.last_id, anew.why)
        await _record_now(log_writer, anew)
    leadership = Leadership(log_writer, promotion.lead, backend)
    leadership.command_as(state.epoch)
    await _warn_of_unreachable(prepared.url, backend)
    if prepared.certificates is not None:
        _warn_of_distrust(prepared.certificates, prepared.url, prepared.authorities)

    # 3. The parts, until something ends them; then the state is kept for the next start.
    snapshots = StateSnapshots(store, key, promotion.recovery.kept_up_to)
    scheduling = SchedulingLoop(
        log_writer, scheduler, clock, config.eager, memory=memory, after=snapshots.decided
    )
    service = Service(
        log_writer,
        scheduling,
        Reconciler(log_writer, backend, clock, context, config.dead_after_s, leadership, divided_by_speed),
        backend,
        clock,
        context,
        config.open_on_loopback,
        keep=config.keep,
        most_open=config.most_open,
        idle=config.idle,
        targets=_targets(config, prepared.url, prepared.listening),
        leadership=leadership,
        watch=watch,
        lenders=prepared.lenders,
        secrets=secrets_of(config, key),
    )
    look_at_the_young()
    with StopSignals() as stop:
        await _run(service, config.limits, prepared, announce, stop)
    if not scheduling.is_deciding:
        await snapshots.stopped(state, scheduling.memory)
    return "" if config.emulated else going_on(state)


def _configured(config: Config, settings: Mapping[str, str]) -> Configured:
    """The scheduler that decides from here on, as the log keeps it."""
    return Configured(
        config.policy,
        "",
        settings,
        config.seed,
        cluster=config.emulated.cluster if config.emulated else "",
        backend=config.backend.name,
        priorities="preempt",
        quotas="kept",
        reservations="kept",
        usage="shown",
        speeds="measured",
        workers="in range",
        suspensions="measured",
        resizes="measured",
        evidence=evidence_that_counts(config.policy, settings),
        profiles="job",
        drains="in place",
        topology="near",
        webhooks="kept",
        defaults="current",
        deadline_worth=DEADLINE_WORTH,
        fair_share_half_life_s=config.fair_share_half_life_s,
        fair_share_limits=config.fair_share_half_life_s > 0,
    )


def _first_events(
    config: Config, configured: Configured, state: State, clock: Clock, watch: ClockWatch
) -> list[Event]:
    """What a start has to say before anything else: the leader, how it decides, and what the log lacks."""
    first: list[Event] = [Began(_unix_of(clock))] if state.seq == 0 else []
    if clock.pace == 1.0 and (clock_set := watch.look()):
        first.append(clock_set)
    first.append(LeadTaken(state.epoch + 1))
    if state.configured != configured:
        first.append(configured)
    if state.queues and DEFAULT_QUEUE not in state.queues:
        first.append(QueueSet(DEFAULT_QUEUE, is_default=True))  # an older service had none
    if not config.open_on_loopback and not any(
        is_admin(entry, time.time()) for entry in state.tokens.values()
    ):
        first.append(first_admin(config.state / FIRST_TOKEN))
    return first


async def _record_now(log_writer: LogWriter, *events: Event) -> None:
    """Durable and folded when awaited, while nothing else writes what waits."""
    recorded = log_writer.record(*events)
    await log_writer.write_waiting()
    await recorded


async def _run(
    service: Service,
    limits: Limits,
    prepared: Prepared,
    announce: "asyncio.Future[str] | None",
    stop: StopSignals,
) -> None:
    app = app_of(service, limits, prepared.provider)
    listening, certificates = prepared.listening, prepared.certificates
    listening.connections = app.state.connections
    server = uvicorn.Server(config_with(app, certificates))
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    running = asyncio.create_task(service.run())
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    stopping = asyncio.create_task(stop.wait())
    beside = [asyncio.create_task(collect_all_periodically())]
    if certificates is not None:
        beside.append(asyncio.create_task(certificates.follow()))
    if announce is not None:
        announce.set_result(prepared.here)
    try:
        await asyncio.wait({running, serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            _raise_why(running)
    finally:
        server.should_exit = True
        await service.end_waits()
        await end_requests(app)  # while what they ask for can still be written
        for task in (*beside, stopping, running):
            task.cancel()
        await asyncio.wait({running})
        await asyncio.wait({serving}, timeout=CLOSED_S)


def _raise_why(running: "asyncio.Task[None]") -> None:
    """Raise what ended the service: where that was foreseen it is one line, else a trace."""
    try:
        running.result()
    except BaseExceptionGroup as several:
        foreseen = [error for error in several.exceptions if isinstance(error, StrettoError)]
        if len(foreseen) == len(several.exceptions):
            raise foreseen[0] from None
        raise


def _provider_of(config: Config) -> "Provider | None":
    """The identity provider of the settings. Raises InputError where the package for it is not installed."""
    if config.oidc is None:
        return None
    try:
        from stretto.service.http.oidc.provider import Provider
    except ModuleNotFoundError as missing:
        raise InputError(f"--oidc needs {missing.name}: install stretto[serve,oidc]") from None
    return Provider(config.oidc)


def secrets_of(config: Config, key: bytes) -> Secrets:
    """What webhooks are signed with: the secrets of a file, else one that follows from the key."""
    return Secrets(hmac.digest(key, b"webhooks", "sha256"), config.webhook_secret_file)


def _targets(config: Config, url: str, listening: socket.socket) -> Targets:
    """Where webhooks may go; never to the service itself."""
    own = urlsplit(url)
    own_port = own.port or PORTS.get(own.scheme, 0)
    return Targets.of(config.notify_allow, [listening.getsockname()[1]], [(own.hostname or "", own_port)])


def _clock(state: State, pace: float) -> Clock:
    """The log's clock, going on from where it was."""
    if state.seq == 0:
        return Clock(pace=pace)
    return resumed(state.at_s, state.calendar.latest, read_clocks(), pace)


def _unix_of(clock: Clock) -> float:
    return time.time() - clock.now_s()


def _make_usable(config: Config) -> None:
    """The state directory is there, and its log can be written. Raises InputError."""
    try:
        config.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as wrong:
        raise InputError(f"--state {config.state}: expected a directory: {wrong.strerror}") from None
    check_own(config.state)
    if config.run_as:
        _open_for_users(config.state)
    if config.log is not None:
        try:
            config.log.open("ab").close()
        except OSError as wrong:
            raise InputError(f"--log-file {config.log}: cannot be written: {wrong.strerror}") from None


def _open_for_users(state: Path) -> None:
    """Jobs of other users reach what is theirs in the state directory, no more. Raises InputError."""
    os.umask(0o077)
    if closed := unix_users.closed_above(state):
        raise InputError(f"--run-as: jobs could not reach --state {state}: not everybody may enter {closed}")
    unix_users.open_state(state, CHECKPOINTS, WORKDIRS, AGENT)


def check_own(folder: Path) -> None:
    """Raise InputError for a state directory that others may write to: they could run jobs as its owner."""
    stats = folder.stat()
    if stats.st_uid != os.geteuid():
        raise InputError(
            f"--state {folder}: expected a directory of user {os.geteuid()}, who starts the service, "
            f"got one of user {stats.st_uid}"
        )
    if stats.st_mode & 0o022:
        raise InputError(
            f"--state {folder}: expected a directory that only its owner may write to, such as mode 700, "
            f"got mode {stats.st_mode & 0o7777:o}"
        )


def _raise_limits() -> None:
    """As many files as this process may have open. Raises InputError for too few to serve any client."""
    most, least = (
        open_files.raise_limit(),
        open_files.limit() - open_files.left_for_others() + LEAST_CONNECTIONS,
    )
    if most < least:
        raise InputError(f"limit of open files (ulimit -n): expected at least {least}, got {most}")


def _of_the_world(config: Config) -> tuple[dict[str, str], dict[str, str]]:
    """Settings of the emulated world, and all others."""
    settings = dict(config.settings)
    world = {key: value for key, value in settings.items() if config.emulated and key.startswith("sim.")}
    others = {key: value for key, value in settings.items() if key not in world}
    if config.emulated and others.pop(DEMAND, ""):
        others.setdefault("lend.rule", CapacityLoaning.rule)  # any setting of lend switches lending on
    return world, others


def _lenders_of(config: Config) -> tuple[Lender, ...]:
    """Lenders that files name: of an emulated cluster, and of --lenders. Raises InputError."""
    lenders: tuple[Lender, ...] = ()
    if config.emulated:
        lenders = lenders_of_cluster(config.emulated.cluster, config.settings, config.seed)
    if config.lenders is not None:
        named = read_lenders(config.lenders)
        own = {node for lender in lenders for node in lender.nodes}
        for lender in named:
            if twice := sorted(own.intersection(lender.nodes)):
                raise InputError(f"{config.lenders}: node {twice[0]} belongs to a lender of the cluster file")
        lenders = (*lenders, *named)
    return lenders


async def _open_backend(
    config: Config, world: Mapping[str, str], scheduler: Scheduler, log_writer: LogWriter, key: bytes
) -> Backend:
    """Raises InputError where the backend cannot be used."""
    site = ServiceSite(
        state=config.state,
        shared=config.shared,
        node_addresses={node.name: node.address for node in log_writer.state.nodes},
        job_namespaces={
            record.id: str(record.spec.kubernetes.get("namespace", ""))
            for record in log_writer.state.jobs.values()
            if record.attempt
        },
        shared_key=key if config.key_file is not None else b"",
        log=log_writer,
        views=scheduler.policy.views,
        world={key.removeprefix("sim."): value for key, value in world.items()},
    )
    try:
        return await config.backend.open(site)
    except ModuleNotFoundError as missing:
        raise InputError(
            f"--backend {config.backend.name} needs {missing.name}: it is not installed"
        ) from None


async def _warn_of_unreachable(url: str, backend: Backend) -> None:
    """Say it where workers are told an address that only this machine knows."""
    host = urlsplit(url).hostname or ""
    try:
        await asyncio.get_running_loop().getaddrinfo(host, None)
    except OSError as wrong:
        print(f"--url {url}: {wrong.strerror}: do its workers know {host}?", file=sys.stderr, flush=True)
    if not is_loopback(host) and host not in ("0.0.0.0", "::"):
        return
    far = [node.name for node in await backend.nodes() if node.address and not is_loopback(node.address)]
    if far:
        warning = f"workers on {', '.join(far[:3])}{' …' if len(far) > 3 else ''} cannot reach {url}"
        logger.warning("%s", warning)
        print(f"{warning}: say --listen ADDRESS:PORT and --url", file=sys.stderr, flush=True)


def _warn_of_distrust(certificates: Certificates, url: str, authorities: str) -> None:
    """Say it where workers would not take the certificate for the service's."""
    if why := why_distrusted(certificates.context, urlsplit(url).hostname or "", authorities):
        warning = f"{CERTIFICATE} {certificates.files.certificate}: workers would not trust {url}: {why}"
        logger.warning("%s", warning)
        hint = "--ca-file names its authorities, and --url a name that it has"
        print(f"{warning}: {hint}", file=sys.stderr, flush=True)


def _key(config: Config) -> bytes:
    """The key that tokens of workers are made of: drawn once, readable by the owner only, or of --key-file.

    Raises InputError for one that cannot be read, or that a full disk or a slip has cut. With an empty one
    any user could make tokens.
    """
    path = config.key_file or config.state / KEY
    try:
        if config.key_file is None and not path.exists():
            if config.standby:
                raise InputError(
                    f"--standby: expected {path} or --key-file with the key of the service that leads, which "
                    "tokens of running jobs are made of"
                )
            temporary = path.with_suffix(".new")
            temporary.touch(mode=0o600)
            temporary.write_bytes(random.token_bytes(KEY_BYTES))
            temporary.replace(path)
        key = path.read_bytes()
    except OSError as wrong:
        raise InputError(f"{path}: cannot be used: {wrong.strerror}") from None
    if len(key) < KEY_BYTES:
        raise InputError(
            f"{path}: expected {KEY_BYTES} bytes, got {len(key)}: put its backup there, or remove it, after "
            "which workers that run now are not let in any more"
        )
    return key


def secret_key_of(config: Config) -> SecretKey:
    """The file that secrets are sealed with. Services that share --key-file share that, too."""
    named = config.secret_key or config.key_file
    return SecretKey(named or config.state / SECRET_KEY, is_named=named is not None)


async def _secrets(config: Config, store: Store) -> SealedSecrets:
    """What users keep for their jobs; says it where this service cannot open some of it."""
    secrets = SealedSecrets(store.secrets, secret_key_of(config))
    if line := await asyncio.to_thread(secrets.unreadable):
        logger.warning("%s", line)
        print(line, file=sys.stderr, flush=True)
    return secrets


def _listen(host: str, port: int) -> Listener:
    listening = Listener(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(WAITING_CONNECTIONS)  # who comes before the first look at the cluster waits a moment
    except OSError as wrong:
        listening.close()
        another = "; does a service run there already? Else name another port" * (
            wrong.errno == errno.EADDRINUSE
        )
        raise InputError(f"--listen {host}:{port}: {wrong.strerror}{another}") from None
    return listening
