"""The loop around the decision for worlds that are waited for, as the simulator is."""

from collections.abc import Callable
from typing import Protocol

from stretto.model import Plan, Snapshot
from stretto.scheduler.round import Scheduler, decide


class World(Protocol):
    """Where jobs really run, or are said to."""

    def wait(self) -> bool:
        """Wait until a decision is due; False once nothing more will ever happen."""

    def observe(self) -> Snapshot:
        """Everything as it stands now."""

    def act(self, plan: Plan) -> None:
        """Carry out what still applies; what does not is dropped with a reason."""


Decide = Callable[[Snapshot, Scheduler], Plan]


def run(
    world: World, scheduler: Scheduler, record: Callable[[Snapshot, Plan], None], decide: Decide = decide
) -> None:
    """Observe, decide, record, act, until the world ends."""
    while world.wait():
        snapshot = world.observe()
        plan = decide(snapshot, scheduler)
        record(snapshot, plan)  # before acting: the decision survives a crash while acting
        world.act(plan)
