"""What has happened? An append-only log of events in SQLite or PostgreSQL, with stored states beside it."""

from stretto.live.store.continuity import Gap
from stretto.live.store.ended import EndedJob, EndedJobs
from stretto.live.store.errors import LeadLost, LedByOther, LogDamaged, LogMoved, StoreError
from stretto.live.store.events import Recorded, Unrecorded, recorded
from stretto.live.store.lead import Lead, Standing
from stretto.live.store.log import Store, StoredState, open_store
from stretto.live.store.mark import Mark, Reached, reached_in

__all__ = [
    "EndedJob",
    "EndedJobs",
    "Gap",
    "Lead",
    "LeadLost",
    "LedByOther",
    "LogDamaged",
    "LogMoved",
    "Mark",
    "Reached",
    "Recorded",
    "Standing",
    "Store",
    "StoreError",
    "StoredState",
    "Unrecorded",
    "open_store",
    "reached_in",
    "recorded",
]
