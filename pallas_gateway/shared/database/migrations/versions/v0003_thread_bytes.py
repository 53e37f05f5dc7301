"""The bytes that each thread counts for its owner's quota; what was stored before counts nothing."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add the column, with a default for gateways that do not know it, and an index from which sums are read."""
    op.add_column("pallas_threads", sa.Column("bytes", sa.BigInteger, nullable=False, server_default="0"))
    op.create_index("pallas_threads_bytes_of_owner", "pallas_threads", ["owner", "bytes"])
