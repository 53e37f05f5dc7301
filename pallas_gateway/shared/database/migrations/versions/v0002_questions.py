"""Questions of a pending turn to its caller."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "pallas_questions",
        sa.Column("thread_id", sa.String(32), sa.ForeignKey("pallas_threads.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("turn", sa.Integer, nullable=False),
        sa.Column("question", sa.JSON, nullable=False),
        sa.Column("answer", sa.JSON),
        sa.Column("asked_at", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "pallas_checkpoints",
        sa.Column("thread_id", sa.String(32), sa.ForeignKey("pallas_threads.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("turn", sa.Integer, nullable=False),
        sa.Column("params", sa.JSON),
        sa.Column("checkpoint", sa.Text, nullable=False),
        sa.Column("valid_until", sa.BigInteger, nullable=False),
    )
