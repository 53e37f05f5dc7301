"""Ratings of answers, and the parameters and the model of a turn."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Add them; of the turns that are there, neither is known."""
    op.add_column("pallas_turns", sa.Column("params", sa.JSON))
    op.add_column("pallas_turns", sa.Column("model", sa.Text))
    op.create_table(
        "pallas_feedback",
        sa.Column("thread_id", sa.String(32), primary_key=True),
        sa.Column("turn", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("rating", sa.String(4), nullable=False),
        sa.Column("note", sa.Text, nullable=False),
        sa.Column("rated_at", sa.BigInteger, nullable=False),
        sa.CheckConstraint("rating IN ('good', 'bad')", name="pallas_feedback_rating"),
        sa.ForeignKeyConstraint(
            ["thread_id", "turn"], ["pallas_turns.thread_id", "pallas_turns.number"], ondelete="CASCADE"
        ),
    )
