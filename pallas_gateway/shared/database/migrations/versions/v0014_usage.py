"""Usage by day, caller, agent and model."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    """Make the table; calls before are not in it."""
    numbers = ("calls", "refused", "nested", "input", "cache_read", "cache_write", "output", "estimated")
    op.create_table(
        "pallas_usage",
        sa.Column("day", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("account", sa.String(32), primary_key=True),
        *(sa.Column(name, sa.Text, primary_key=True) for name in ("agent", "model", "failure")),
        sa.Column("caller", sa.Text, nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in numbers),
        sa.Column("cost", sa.Float, nullable=False),
    )
