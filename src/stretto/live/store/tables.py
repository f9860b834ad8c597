"""The tables as queries see them. Migrations make them; they say the same in their own words."""

from sqlalchemy import BigInteger, Column, Double, LargeBinary, MetaData, Table, Text

METADATA = MetaData()

LOG = Table(
    "stretto_log",
    METADATA,
    Column("seq", BigInteger, primary_key=True, autoincrement=False),  # the writer numbers, without gaps
    Column("at_s", Double, nullable=False),
    Column("kind", Text, nullable=False),
    Column("subject", Text, nullable=False),
    # Not JSONB, which turns 1e2 into 100 and reorders keys: a fold must see what was written.
    Column("body", Text, nullable=False),
    Column("append", BigInteger, nullable=False),  # drawn for each append, to recognise its own rows
    Column("chain", LargeBinary),  # its digest over the one before; NULL of versions that had none
)

GAPS = Table(
    "stretto_gaps",  # events that are missing or damaged, and that somebody goes on without
    METADATA,
    Column("first", BigInteger, primary_key=True, autoincrement=False),
    Column("last", BigInteger, nullable=False),
)

STATES = Table(
    "stretto_states",
    METADATA,
    Column("seq", BigInteger, primary_key=True, autoincrement=False),  # the last event that is folded into it
    Column("state", LargeBinary, nullable=False),
)

ENDED_JOBS = Table(
    "stretto_ended_jobs",  # that have left the state; all but the last column follows from the log
    METADATA,
    Column("number", BigInteger, primary_key=True, autoincrement=False),  # in the order of submission
    Column("job", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("queue", Text, nullable=False),
    Column("array", Text, nullable=False),  # "": it is no task of one
    Column("key", Text, nullable=False),  # of idempotency; "": none
    Column("state", Text, nullable=False),
    Column("ended_s", Double, nullable=False),
    Column("body", Text, nullable=False),  # what is shown of it, as JSON
    Column("logs_deleted_s", Double),  # when that was; NULL: not yet
)

VERSION_TABLE = "stretto_schema"  # of its own, so that another program's migrations may share the database
