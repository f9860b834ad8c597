"""A digest of each event, over the one before; and which events the operator goes on without."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column, empty for what is there, and the table."""
    op.add_column("stretto_log", sa.Column("chain", sa.LargeBinary(), nullable=True))
    op.create_table(
        "stretto_gaps",
        sa.Column("first", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("last", sa.BigInteger(), nullable=False),
    )
