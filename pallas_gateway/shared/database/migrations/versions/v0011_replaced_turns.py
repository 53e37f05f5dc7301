"""Turns that take the place of others: another answer to the same message."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Add the column; the turns that are there replace none."""
    op.add_column("pallas_turns", sa.Column("replaces", sa.Integer))
    is_set = sa.text("replaces IS NOT NULL")
    columns = ["thread_id", "replaces", "number", "status"]
    op.create_index("pallas_turns_replacing", "pallas_turns", columns, sqlite_where=is_set, postgresql_where=is_set)
