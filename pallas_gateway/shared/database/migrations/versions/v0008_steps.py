"""Steps of turns, the sizes of turns, and the id of a thread's agent."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
THREADS_AT_ONCE = 200
"""A statement that measures more of them could take longer than a connection allows."""
INDEXES = {
    "pallas_threads_all_of_owner": ("pallas_threads", ["owner", "updated_at", "id"]),
    "pallas_threads_of_agent": ("pallas_threads", ["agent_id"]),
    "pallas_threads_by_age": ("pallas_threads", ["updated_at"]),
    "pallas_turns_sizes": ("pallas_turns", ["thread_id", "number", "status", "bytes", "steps_bytes", "tokens"]),
}


def upgrade() -> None:
    """Add them, with defaults for gateways that do not know them, and measure the turns that are there."""
    op.add_column("pallas_threads", sa.Column("agent_id", sa.Text, nullable=False, server_default=""))
    for name in ("bytes", "steps_bytes", "tokens"):
        op.add_column("pallas_turns", sa.Column(name, sa.BigInteger, nullable=False, server_default="0"))
    op.add_column("pallas_checkpoints", sa.Column("messages", sa.JSON))
    op.create_table(
        "pallas_steps",
        sa.Column("thread_id", sa.String(32), primary_key=True),
        sa.Column("turn", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("provider", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("step", sa.Text, nullable=False),
        sa.ForeignKeyConstraint(
            ["thread_id", "turn"], ["pallas_turns.thread_id", "pallas_turns.number"], ondelete="CASCADE"
        ),
    )
    _measure(op.get_bind())
    for name, (table, columns) in INDEXES.items():
        op.create_index(name, table, columns)


def _measure(sql: sa.Connection) -> None:
    """Write the bytes and the estimated tokens of all turns, as `features/threads/sizes.py` counts them."""
    blob = "CAST({} AS BLOB)" if sql.dialect.name == "sqlite" else "CAST({} AS TEXT)"
    length = "LENGTH" if sql.dialect.name == "sqlite" else "OCTET_LENGTH"
    texts, images = (
        [f"COALESCE({length}({blob.format(f'{part}{ending}')}), 0)" for part in ("question", "answer")]
        for ending in ("", "_images")
    )
    pictures = [f"COALESCE(json_array_length({part}_images), 0)" for part in ("question", "answer")]
    written = sa.text(
        f"UPDATE pallas_turns SET bytes = {' + '.join([*texts, *images])},"  # noqa: S608  made of constants
        f" tokens = ({' + '.join(texts)}) / 3 + 2 + 1600 * ({' + '.join(pictures)})"
        " WHERE thread_id > :after AND thread_id <= :last"
    )
    some = sa.text("SELECT id FROM pallas_threads WHERE id > :after ORDER BY id LIMIT :most")
    after = ""
    while found := sql.execute(some, {"after": after, "most": THREADS_AT_ONCE}).scalars().all():
        sql.execute(written, {"after": after, "last": found[-1]})
        after = found[-1]
