"""The name of the process that holds the lease of a thread, and runs its call."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add the column, which gateways that do not know it leave empty."""
    op.add_column("pallas_threads", sa.Column("lease_process", sa.String(32)))
