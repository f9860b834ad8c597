"""Jobs that have ended and left the state: made of the log, and to be made anew from it."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table, and what finds its rows."""
    op.create_table(
        "stretto_ended_jobs",
        sa.Column("number", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("array", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("ended_s", sa.Double(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("logs_deleted_s", sa.Double(), nullable=True),
    )
    table = "stretto_ended_jobs"
    op.create_index("stretto_ended_jobs_by_job", table, ["job"], unique=True)
    op.create_index("stretto_ended_jobs_by_owner", table, ["owner", "number"])
    op.create_index("stretto_ended_jobs_by_name", table, ["owner", "name", "number"])
    for index, columns, condition in (
        ("stretto_ended_jobs_by_array", ["array", "number"], "\"array\" <> ''"),
        ("stretto_ended_jobs_by_key", ["owner", "key"], "key <> ''"),
        ("stretto_ended_jobs_with_logs", ["ended_s", "number"], "logs_deleted_s IS NULL"),
    ):
        op.create_index(
            index, table, columns, sqlite_where=sa.text(condition), postgresql_where=sa.text(condition)
        )
