"""GPU time of jobs that have left the state: made of the log, and to be made anew from it."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table, and what finds its rows."""
    table = "stretto_usage"
    op.create_table(
        table,
        sa.Column("number", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("place", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("from_us", sa.BigInteger(), nullable=False),
        sa.Column("until_us", sa.BigInteger(), nullable=False),
        sa.Column("gpu_type", sa.Text(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("use", sa.Text(), nullable=False),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("cause_name", sa.Text(), nullable=False),
        sa.Column("cause_user", sa.Text(), nullable=False),
        sa.Column("cause_queue", sa.Text(), nullable=False),
        sa.Column("gpu_us", sa.BigInteger(), nullable=False),
    )
    op.create_index("stretto_usage_by_end", table, ["until_us"])
