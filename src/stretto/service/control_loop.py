"""The live cycle on one screen: observe, decide, record, reconcile, act.

The simulator takes the same steps one after the other, in `run` of `scheduler/loop.py`. Here they are four
loops beside each other, since none may wait for another. A decision may take a second, and meanwhile workers
end and commands go out. What one loop tells another is an event, durable before anything follows from it.
"""

import asyncio

from stretto.model import Trigger
from stretto.service.reconcile.controller import Reconciler
from stretto.service.scheduling.loop import SchedulingLoop

AT_MOST_EVERY_S = 0.2  # of wall time between two decisions; chosen: what comes together is decided together


async def start(group: asyncio.TaskGroup, scheduling: SchedulingLoop, reconciler: Reconciler) -> None:
    """Have a group of tasks run the cycle until it is cancelled; the first loop that fails ends all."""
    await observe_once(reconciler)  # what runs already is known before anything is decided
    for loop in (
        observe(reconciler),
        schedule(scheduling),
        reconcile(reconciler),
        expire_silent_nodes(reconciler),
    ):
        group.create_task(loop)


async def observe(reconciler: Reconciler) -> None:
    """Write down what the backend shows, whenever it shows something else."""
    number = 0
    while True:
        await observe_once(reconciler)
        number = await reconciler.backend.changes(number)


async def observe_once(reconciler: Reconciler) -> None:
    """What runs, and what the log does not say of it yet."""
    difference = await reconciler.observe()
    reconciler.dispatcher.stop_strays(difference.strays)  # what no job wants must not go on holding GPUs
    await reconciler.record(difference.events)
    reconciler.dispatcher.forget_ended(difference.shown)  # now that their ends are in the log


async def schedule(scheduling: SchedulingLoop) -> None:
    """Ask the policy whenever something is due: an event, a round, or a time that it has named itself."""
    scheduling.begin()
    while True:
        due = await scheduling.wait_until_due()
        # What an event has others say is known then: of a newcomer, say, what short runs have told.
        await scheduling.log_writer.caught_up()
        await schedule_once(scheduling, due)
        await asyncio.sleep(AT_MOST_EVERY_S)


async def schedule_once(scheduling: SchedulingLoop, due: frozenset[Trigger]) -> None:
    """One decision. It is not carried out here: what is recorded is wanted, and so is for `reconcile`."""
    snapshot = scheduling.observe(due)  # the state, with the constraints that hold now
    try:
        plan, took_ms = await scheduling.decide(snapshot)  # in a thread: the other loops go on meanwhile
    except Exception as failure:
        scheduling.note_failure(failure, due)
        return
    await scheduling.record(snapshot, plan, took_ms)  # what has become stale meanwhile is dropped by the fold


async def reconcile(reconciler: Reconciler) -> None:
    """Bring what runs closer to what is wanted, job by job, whenever either has changed."""
    reconciler.begin()
    while True:
        await reconcile_once(reconciler)
        await reconciler.wait_until_dirty()


async def reconcile_once(reconciler: Reconciler) -> None:
    """The next step of every job that has changed, or whose time has come."""
    steps = reconciler.next_steps()  # wanted against running
    await reconciler.record(steps.events)  # before acting: after a crash the log says what may have begun
    reconciler.dispatcher.dispatch_all(steps.commands)  # starts and stops: beside the loop, and repeatable


async def expire_silent_nodes(reconciler: Reconciler) -> None:
    """Count the workers of nodes as lost that have been silent for too long."""
    while reconciler.dead_after_s > 0:
        await reconciler.record(reconciler.dead_nodes())
        await asyncio.sleep(reconciler.check_silence_s)
