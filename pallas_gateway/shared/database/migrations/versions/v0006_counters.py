"""Counters of limits, and the leases of running calls."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "pallas_counters",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("scope", sa.String(32), nullable=False),
        sa.Column("calls", sa.BigInteger, nullable=False),
        sa.Column("day", sa.Integer, nullable=False),
        sa.Column("tokens", sa.BigInteger, nullable=False),
        sa.Column("touched_at", sa.BigInteger, nullable=False),
    )
    op.create_index("pallas_counters_of_scope", "pallas_counters", ["scope"])
    op.create_table(
        "pallas_counted_calls",
        sa.Column("counter", sa.String(32), primary_key=True),
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("began_at", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "pallas_processes",
        sa.Column("process", sa.String(32), primary_key=True),
        sa.Column("alive_until", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "pallas_call_leases",
        sa.Column("process", sa.String(32), primary_key=True),
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("counter", sa.String(32), primary_key=True),
    )
    op.create_index("pallas_call_leases_of_counter", "pallas_call_leases", ["counter"])
