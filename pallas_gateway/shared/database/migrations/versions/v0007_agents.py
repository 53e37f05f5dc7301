"""Agents of the database, their versions, and the number of their changes."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Make the tables, and the row that counts changes."""
    op.create_table(
        "pallas_agents",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("owner_name", sa.Text, nullable=False),
        sa.Column("sub_agents", sa.JSON, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("updated_at", sa.BigInteger, nullable=False),
        sa.Column("deleted_at", sa.BigInteger),
        sa.Column("drops_threads", sa.Boolean, nullable=False),
    )
    living = sa.text("deleted_at IS NULL")
    op.create_index(
        "pallas_agents_key", "pallas_agents", ["key"], unique=True, sqlite_where=living, postgresql_where=living
    )
    op.create_table(
        "pallas_agent_versions",
        sa.Column("agent_id", sa.String(32), sa.ForeignKey("pallas_agents.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("editor", sa.Text, nullable=False),
        sa.Column("definition", sa.JSON, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
    )
    changes = op.create_table("pallas_agent_changes", sa.Column("number", sa.BigInteger, nullable=False))
    op.bulk_insert(changes, [{"number": 0}])
