"""The state that a log gives, and what the policy remembers: read at a start, and followed by a standby."""

import logging
from math import inf

from stretto.model import Memory
from stretto.scheduler.round import Scheduler
from stretto.service.eventlog import Reached, Store
from stretto.service.gc_tuning import put_off
from stretto.service.retention.job_retention import mend
from stretto.service.scheduling.replay import Replay
from stretto.service.state.events import Configured, Event, event_of
from stretto.service.state.state import State
from stretto.service.state_snapshots import begun

log = logging.getLogger(__name__)


class Recovery:
    """Folds a log, from its newest kept state on, as far as the log goes at each `read_on`.

    Decisions are repeated only for what the policy remembers. So only those since it was configured as it is
    now are: no other policy is loaded, since its code may be gone.
    """

    @put_off()
    def __init__(self, store: Store, key: bytes, configured: Configured, scheduler: Scheduler) -> None:
        """key: opens kept states. configured: how the service decides once it leads, by `scheduler`."""
        start = begun(store, key, store.last())
        self.store, self.configured = store, configured
        self.seq = self.kept_up_to = start.state.seq  # of the last event read, and of the kept state
        self._replay = Replay(start.state, lambda _: scheduler, for_memory=True, memory=start.memory)
        self._configured_seq = -1  # of the newest configuration that was seen
        self._decide_from(start.state.seq, start.state.configured)

    @put_off()
    def read_on(self) -> None:
        """Take what the log has got since. Raises StoreError, LogDamaged, and UnknownEvent."""
        # Ahead of all others: decisions before the newest configuration need not be repeated.
        for recorded in self.store.read(after=self.seq, kinds=[Configured.__name__]):
            self._decide_from(recorded.seq, event_of(recorded.kind, recorded.body))
        for recorded in self.store.read(after=self.seq, verify=True):
            if recorded.kind == Configured.__name__ and recorded.seq > self._configured_seq:
                self._decide_from(recorded.seq, event_of(recorded.kind, recorded.body))
            self._replay.next(recorded)
            self.seq = recorded.seq

    def _decide_from(self, seq: int, configured: Event) -> None:
        self._configured_seq = seq
        self._replay.decide_from = seq if configured == self.configured else inf

    def reached(self) -> Reached:
        """How far the log has come, as evidence for a later look at it. Raises StoreError."""
        chain = self.store.chain_of(self.seq)
        return Reached(self.seq, chain.hex() if chain else "", self._replay.state.largest_id)

    @put_off()
    def finished(self) -> tuple[State, Memory]:
        """The state after what was read, and what the policy remembers; None where that is unknown."""
        state = self._replay.finish()
        for difference in self._replay.differences:  # what the policy remembers may differ, too
            log.warning("%s", difference.words)
        mend(self.store, state)
        memory = self._replay.memory if state.configured == self.configured else None
        return state, memory
