"""Who changed what belongs to others, and who was refused: kept in the log like everything else."""

from dataclasses import dataclass, field

from stretto.live.api.access import Caller
from stretto.live.api.limits import Buckets
from stretto.live.history.ledger import Ledger
from stretto.live.state.events import Audited

REFUSALS_PER_S, REFUSALS_AT_ONCE = 0.1, 20  # of one caller; chosen: who asks for ever must not fill the log


@dataclass
class Audit:
    """Writes what is worth knowing later."""

    ledger: Ledger
    refusals: Buckets = field(default_factory=lambda: Buckets(REFUSALS_PER_S, REFUSALS_AT_ONCE))

    def refused(self, caller: Caller, what: str, about: str) -> None:
        """Note a refusal; nobody waits until it is durable."""
        if not self.refusals.take(caller.name):
            self.ledger.record(did(caller, what, about, "refused"))


def did(caller: Caller, what: str, about: str, refused: str = "") -> Audited:
    """The event that says so."""
    return Audited(caller.name, what, about[:200], refused)
