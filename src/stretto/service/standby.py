"""A service that stands by: it follows the log of another, and takes its place as soon as that has ended."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import uvicorn

from stretto.service.eventlog import Lead, LedByOther, LogDamaged, Reached, Store, StoreError
from stretto.service.http.certificates import Certificates
from stretto.service.http.connections import Listener
from stretto.service.http.encrypted import config_with
from stretto.service.http.rate_limits import Limits
from stretto.service.http.standby import StandbyApp
from stretto.service.recovery import Recovery
from stretto.service.signals import StopSignals

LOOK_S = 1.0  # between two tries to lead; chosen: well below the 15 s in which a standby is to lead

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Promotion:
    """The lead, and what was known of the log before it was taken."""

    lead: Lead
    recovery: Recovery
    reached: Reached | None  # how far the log had come, as far as is known: so far it must still come


async def stand_by(
    store: Store,
    recover: Callable[[], Recovery],
    listening: Listener,
    reached: Reached | None,
    limits: Limits,
    announce: Callable[[str], None],
    certificates: Certificates | None = None,
) -> Promotion | None:
    """Wait until the lead is ours; None where a signal ends this process first.

    recover: opens the log. reached: how far it had come, as far as this machine knows. announce: is told
    which service leads. Meanwhile the address answers probes, and refuses all else with 503. Raises
    LogDamaged and UnknownEvent for a log that cannot be followed.
    """
    recovery = await asyncio.to_thread(recover)
    app = StandbyApp(limits)
    server = uvicorn.Server(config_with(app, certificates))
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    listening.connections = app.state.connections
    with StopSignals() as stop:
        # Its socket is a second one of the same address: the first goes on listening for the service itself
        serving = asyncio.create_task(server.serve(sockets=[_copy_of(listening)]))
        following = asyncio.create_task(_promoted(store, recovery, reached, app, announce))
        stopping = asyncio.create_task(stop.wait())
        looking = asyncio.create_task(certificates.follow()) if certificates is not None else stopping
        try:
            await asyncio.wait({serving, following, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not following.done():
                return None
            promotion = following.result()
            if stopping.done():  # a signal came in the moment of the promotion: another is to lead
                promotion.lead.release()
                return None
            return promotion
        finally:
            server.should_exit = True
            for task in (following, stopping, looking):
                task.cancel()
                with suppress(asyncio.CancelledError, StoreError):
                    await task
            await serving


async def _promoted(
    store: Store,
    recovery: Recovery,
    reached: Reached | None,
    app: StandbyApp,
    announce: Callable[[str], None],
) -> Promotion:
    """Follow the log, and try to lead now and then, until that succeeds."""
    while True:
        try:
            await asyncio.to_thread(recovery.read_on)
            if app.leader:  # then this log is the one that it writes, and no copy
                reached = await asyncio.to_thread(recovery.reached)
            lead = await asyncio.to_thread(store.lead)
        except LedByOther as other:
            if app.leader != other.holder:
                log.info("standing by: %s leads", other.holder)
                announce(other.holder)
            app.leader = other.holder
        except LogDamaged:
            raise
        except StoreError as wrong:
            log.warning("standing by: %s", wrong)
        else:
            log.info("leading, in place of %s", app.leader or "no other service")
            return Promotion(lead, recovery, reached)
        await asyncio.sleep(LOOK_S)


def _copy_of(listening: Listener) -> Listener:
    copy = Listener(fileno=listening.dup().detach())
    copy.connections = listening.connections
    return copy
