"""Reasons of agents' versions, notes that the owner of the agent may read, and the callers that may own agents."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Add them; no version has a reason, and no note that is there may be read."""
    op.add_column("pallas_agent_versions", sa.Column("why", sa.Text))
    op.add_column("pallas_feedback", sa.Column("for_owner", sa.Boolean))
    op.create_table(
        "pallas_callers",
        sa.Column("owner", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("seen_at", sa.BigInteger, nullable=False),
    )
