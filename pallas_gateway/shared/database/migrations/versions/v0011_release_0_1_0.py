"""The tables of release 0.1.0, the first one: threads, used states, counters, agents."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = None


def upgrade() -> None:
    """Make the tables."""
    _make_threads()
    _make_turns()
    _make_parts_of_turns()
    _make_counters()
    _make_agents()
    op.create_table(
        "pallas_used_states",
        sa.Column("ticket", sa.String(32), primary_key=True),
        sa.Column("process", sa.String(32), nullable=False),
        sa.Column("valid_until", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "pallas_loaded_configurations",
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column("loaded_at", sa.BigInteger, nullable=False),
    )


def _make_threads() -> None:
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
        sa.Column("bytes", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("lease_process", sa.String(32)),
        sa.Column("agent_id", sa.Text, nullable=False, server_default=""),
    )
    for name, columns in (
        ("pallas_threads_of_owner", ["owner", "agent", "updated_at", "id"]),
        ("pallas_threads_all_of_owner", ["owner", "updated_at", "id"]),
        ("pallas_threads_of_agent", ["agent_id"]),
        ("pallas_threads_by_age", ["updated_at"]),
        ("pallas_threads_bytes_of_owner", ["owner", "bytes"]),
    ):
        op.create_index(name, "pallas_threads", columns)


def _make_turns() -> None:
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
        *(
            sa.Column(name, sa.BigInteger, nullable=False, server_default="0")
            for name in ("bytes", "steps_bytes", "tokens")
        ),
        sa.Column("params", sa.JSON),
        sa.Column("model", sa.Text),
        sa.Column("replaces", sa.Integer),
        sa.CheckConstraint("status IN ('pending', 'complete', 'error')", name="pallas_turns_status"),
    )
    sizes = ["thread_id", "number", "status", "bytes", "steps_bytes", "tokens"]
    op.create_index("pallas_turns_sizes", "pallas_turns", sizes)
    columns, is_set = ["thread_id", "replaces", "number", "status"], sa.text("replaces IS NOT NULL")
    op.create_index("pallas_turns_replacing", "pallas_turns", columns, sqlite_where=is_set, postgresql_where=is_set)


def _make_parts_of_turns() -> None:
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
        sa.Column("messages", sa.JSON),
    )
    op.create_table(
        "pallas_steps",
        sa.Column("thread_id", sa.String(32), primary_key=True),
        sa.Column("turn", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("provider", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("step", sa.Text, nullable=False),
        _of_a_turn(),
    )
    op.create_table(
        "pallas_feedback",
        sa.Column("thread_id", sa.String(32), primary_key=True),
        sa.Column("turn", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("rating", sa.String(4), nullable=False),
        sa.Column("note", sa.Text, nullable=False),
        sa.Column("rated_at", sa.BigInteger, nullable=False),
        sa.CheckConstraint("rating IN ('good', 'bad')", name="pallas_feedback_rating"),
        _of_a_turn(),
    )


def _of_a_turn() -> sa.ForeignKeyConstraint:
    columns = ["pallas_turns.thread_id", "pallas_turns.number"]
    return sa.ForeignKeyConstraint(["thread_id", "turn"], columns, ondelete="CASCADE")


def _make_counters() -> None:
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


def _make_agents() -> None:
    op.create_table(
        "pallas_agents",
        sa.Column("id", sa.String(32), primary_key=True),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("name", "key", "owner", "owner_name")),
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
