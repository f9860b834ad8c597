"""What has happened? An append-only log of events in SQLite or PostgreSQL, with stored states beside it."""

from stretto.live.store.ended import EndedJob, EndedJobs
from stretto.live.store.errors import LeadLost, LedByOther, LogMoved, StoreError
from stretto.live.store.events import Recorded, Unrecorded, recorded
from stretto.live.store.lead import Lead, Standing
from stretto.live.store.log import Store, StoredState, open_store

__all__ = [
    "EndedJob",
    "EndedJobs",
    "Lead",
    "LeadLost",
    "LedByOther",
    "LogMoved",
    "Recorded",
    "Standing",
    "Store",
    "StoreError",
    "StoredState",
    "Unrecorded",
    "open_store",
    "recorded",
]
