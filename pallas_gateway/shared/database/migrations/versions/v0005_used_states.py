"""States of calls that were used, each by one process."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "pallas_used_states",
        sa.Column("ticket", sa.String(32), primary_key=True),
        sa.Column("process", sa.String(32), nullable=False),
        sa.Column("valid_until", sa.BigInteger, nullable=False),
    )
