"""When configurations were loaded first, for the times in the registry."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "pallas_loaded_configurations",
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column("loaded_at", sa.BigInteger, nullable=False),
    )
