"""Tasks: calls that go on after their connection, their worker or their replica has gone."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "pallas_tasks",
        sa.Column("id", sa.String(32), primary_key=True),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("owner", "account", "principal", "agent", "agent_id")),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("api", "call_id")),
        sa.Column("conversation_id", sa.Text),
        sa.Column("thread_id", sa.String(32)),
        sa.Column("turn", sa.Integer),
        sa.Column("request", sa.JSON),
        sa.Column("format", sa.Integer, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("status_message", sa.Text, nullable=False),
        sa.Column("result", sa.JSON),
        sa.Column("error", sa.JSON),
        sa.Column("holder", sa.String(32)),
        sa.Column("process", sa.String(32)),
        *(sa.Column(name, sa.Integer, nullable=False) for name in ("claims", "unmoved")),
        sa.Column("not_before", sa.BigInteger, nullable=False),
        *(sa.Column(name, sa.Boolean, nullable=False) for name in ("can_move", "by_owner")),
        sa.Column("tokens", sa.BigInteger, nullable=False),
        sa.Column("cost", sa.Float, nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("created_at", "updated_at")),
        sa.Column("ended_at", sa.BigInteger),
        sa.Column("expires_at", sa.BigInteger, nullable=False),
        sa.CheckConstraint(
            "status IN ('working', 'input_required', 'completed', 'failed', 'cancelled')", name="pallas_tasks_status"
        ),
        sa.ForeignKeyConstraint(
            ["thread_id", "turn"], ["pallas_turns.thread_id", "pallas_turns.number"], ondelete="CASCADE"
        ),
    )
    for name, columns, where in (
        ("pallas_tasks_to_claim", ["not_before"], sa.text("status = 'working'")),
        ("pallas_tasks_of_process", ["process"], sa.text("holder IS NOT NULL")),
        ("pallas_tasks_open", ["account"], sa.text("ended_at IS NULL")),
        ("pallas_tasks_by_end", ["expires_at"], None),
        ("pallas_tasks_of_turn", ["thread_id", "turn"], None),
    ):
        op.create_index(name, "pallas_tasks", columns, sqlite_where=where, postgresql_where=where)
    op.create_table(
        "pallas_task_steps",
        sa.Column("task_id", sa.String(32), sa.ForeignKey("pallas_tasks.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("kind", sa.String(8), nullable=False),
        sa.Column("turn", sa.Integer, nullable=False),
        sa.Column("tool_call", sa.Text, nullable=False),
        sa.Column("data", sa.JSON, nullable=False),
    )
    op.create_table(
        "pallas_task_questions",
        sa.Column("task_id", sa.String(32), sa.ForeignKey("pallas_tasks.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("question", sa.JSON, nullable=False),
        sa.Column("answer", sa.JSON),
        sa.Column("asked_at", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.BigInteger, nullable=False),
    )
