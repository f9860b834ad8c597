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
)

STATES = Table(
    "stretto_states",
    METADATA,
    Column("seq", BigInteger, primary_key=True, autoincrement=False),  # the last event that is folded into it
    Column("state", LargeBinary, nullable=False),
)

VERSION_TABLE = "stretto_schema"  # of its own, so that another program's migrations may share the database
