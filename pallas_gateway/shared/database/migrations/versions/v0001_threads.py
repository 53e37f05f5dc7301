"""Threads and their turns."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make both tables."""
    op.create_table(
        "pallas_threads",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("title", sa.Text),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("updated_at", sa.BigInteger, nullable=False),
        sa.Column("turns", sa.Integer, nullable=False),
        sa.Column("lease_holder", sa.String(32)),
        sa.Column("lease_until", sa.BigInteger),
    )
    op.create_index("pallas_threads_of_owner", "pallas_threads", ["owner", "agent", "updated_at", "id"])
    op.create_table(
        "pallas_turns",
        sa.Column("thread_id", sa.String(32), sa.ForeignKey("pallas_threads.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("status", sa.String(8), nullable=False),
        sa.Column("question", sa.Text, nullable=False),
        sa.Column("question_images", sa.JSON, nullable=False),
        sa.Column("answer", sa.Text),
        sa.Column("answer_images", sa.JSON, nullable=False),
        sa.Column("stop_reason", sa.Text),
        sa.Column("usage", sa.JSON, nullable=False),
        sa.Column("error_reason", sa.Text),
        sa.Column("error", sa.Text),
        sa.Column("call_id", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("ended_at", sa.BigInteger),
        sa.CheckConstraint("status IN ('pending', 'complete', 'error')", name="pallas_turns_status"),
    )
