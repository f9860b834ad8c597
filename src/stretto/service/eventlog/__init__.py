"""What has happened? An append-only log of events in SQLite or PostgreSQL, with stored states beside it."""

from stretto.service.eventlog.continuity import Gap, Mark, Reached, reached_in
from stretto.service.eventlog.database import LeadLost, LedByOther, LogDamaged, LogMoved, StoreError
from stretto.service.eventlog.ended_jobs import EndedJob, EndedJobs, UsedRow
from stretto.service.eventlog.leader_lock import Lead, Standing
from stretto.service.eventlog.log import Recorded, Store, StoredState, Unrecorded, open_store, recorded

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
    "UsedRow",
    "open_store",
    "reached_in",
    "recorded",
]
