"""The tables. A change here needs a step in `migrations/versions`; a test compares the two.

Times are milliseconds since 1970 by the database's clock, because leases are compared and replicas' clocks may differ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

if TYPE_CHECKING:
    from sqlalchemy import Row
    from sqlalchemy.sql.compiler import SQLCompiler

    type AnyRow = Row[*tuple[Any, ...]]

ID_CHARACTERS = 32
METADATA = MetaData()

threads = Table(
    "pallas_threads",
    METADATA,
    Column("id", String(ID_CHARACTERS), primary_key=True),
    Column("owner", Text, nullable=False),
    Column("agent", Text, nullable=False),
    Column("title", Text),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("turns", Integer, nullable=False),
    Column("lease_holder", String(ID_CHARACTERS)),
    Column("lease_until", BigInteger),
    Column("lease_process", String(ID_CHARACTERS)),
    Column("bytes", BigInteger, nullable=False, server_default="0"),
    Column("agent_id", Text, nullable=False, server_default=""),
    Index("pallas_threads_of_owner", "owner", "agent", "updated_at", "id"),
    Index("pallas_threads_all_of_owner", "owner", "updated_at", "id"),
    Index("pallas_threads_of_agent", "agent_id"),
    Index("pallas_threads_by_age", "updated_at"),
    Index("pallas_threads_bytes_of_owner", "owner", "bytes"),
)
"""`agent_id` is that of an agent of the database; empty for agents of files."""

turns = Table(
    "pallas_turns",
    METADATA,
    Column("thread_id", ForeignKey("pallas_threads.id", ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("status", String(8), nullable=False),
    Column("question", Text, nullable=False),
    Column("question_images", JSON, nullable=False),
    Column("answer", Text),
    Column("answer_images", JSON, nullable=False),
    Column("stop_reason", Text),
    Column("usage", JSON, nullable=False),
    Column("error_reason", Text),
    Column("error", Text),
    Column("call_id", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("ended_at", BigInteger),
    Column("bytes", BigInteger, nullable=False, server_default="0"),
    Column("steps_bytes", BigInteger, nullable=False, server_default="0"),
    Column("tokens", BigInteger, nullable=False, server_default="0"),
    Column("params", JSON(none_as_null=True)),
    Column("model", Text),
    Column("replaces", Integer),
    CheckConstraint("status IN ('pending', 'complete', 'error')", name="pallas_turns_status"),
    Index("pallas_turns_sizes", "thread_id", "number", "status", "bytes", "steps_bytes", "tokens"),
)
"""`bytes` and `tokens` (an estimate) are those of a turn with its steps, so that no text is read to add them up.
`params` are those of its message, `model` is the one of its latest LLM turn. `replaces` is the first of the turns whose
place it takes: these, and those between, have the same message."""

_is_replacing = turns.c.replaces.is_not(None)
Index(
    "pallas_turns_replacing",
    *(turns.c[name] for name in ("thread_id", "replaces", "number", "status")),
    sqlite_where=_is_replacing,
    postgresql_where=_is_replacing,
)


feedback = Table(
    "pallas_feedback",
    METADATA,
    Column("thread_id", String(ID_CHARACTERS), primary_key=True),
    Column("turn", Integer, primary_key=True, autoincrement=False),
    Column("rating", String(4), nullable=False),
    Column("note", Text, nullable=False),
    Column("rated_at", BigInteger, nullable=False),
    Column("for_owner", Boolean),
    CheckConstraint("rating IN ('good', 'bad')", name="pallas_feedback_rating"),
    ForeignKeyConstraint(["thread_id", "turn"], ["pallas_turns.thread_id", "pallas_turns.number"], ondelete="CASCADE"),
)
"""What the owner of a thread thinks of the answer of a turn. Copies of a thread do not have it. With `for_owner` the
owner of the agent may read the note, the message and the answer."""


steps = Table(
    "pallas_steps",
    METADATA,
    Column("thread_id", String(ID_CHARACTERS), primary_key=True),
    Column("turn", Integer, primary_key=True, autoincrement=False),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("provider", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("step", Text, nullable=False),
    ForeignKeyConstraint(["thread_id", "turn"], ["pallas_turns.thread_id", "pallas_turns.number"], ondelete="CASCADE"),
)
"""The rounds of tools of turns, as JSON, with the provider and the model that asked for them."""


questions = Table(
    "pallas_questions",
    METADATA,
    Column("thread_id", ForeignKey("pallas_threads.id", ondelete="CASCADE"), primary_key=True),
    Column("id", String(ID_CHARACTERS), primary_key=True),
    Column("turn", Integer, nullable=False),
    Column("question", JSON, nullable=False),
    Column("answer", JSON(none_as_null=True)),
    Column("asked_at", BigInteger, nullable=False),
)
"""Used by release 0.1.0 only, as the next table: questions of turns are those of their tasks."""


checkpoints = Table(
    "pallas_checkpoints",
    METADATA,
    Column("thread_id", ForeignKey("pallas_threads.id", ondelete="CASCADE"), primary_key=True),
    Column("turn", Integer, nullable=False),
    Column("params", JSON(none_as_null=True)),
    Column("messages", JSON(none_as_null=True)),
    Column("checkpoint", Text, nullable=False),
    Column("valid_until", BigInteger, nullable=False),
)
"""Used by release 0.1.0 only."""


tasks = Table(
    "pallas_tasks",
    METADATA,
    Column("id", String(ID_CHARACTERS), primary_key=True),
    Column("owner", Text, nullable=False),
    Column("account", Text, nullable=False),
    Column("principal", Text, nullable=False),
    Column("agent", Text, nullable=False),
    Column("agent_id", Text, nullable=False),
    Column("api", Text, nullable=False),
    Column("call_id", Text, nullable=False),
    Column("conversation_id", Text),
    Column("thread_id", String(ID_CHARACTERS)),
    Column("turn", Integer),
    Column("request", JSON(none_as_null=True)),
    Column("format", Integer, nullable=False),
    Column("status", String(16), nullable=False),
    Column("status_message", Text, nullable=False),
    Column("result", JSON(none_as_null=True)),
    Column("error", JSON(none_as_null=True)),
    Column("holder", String(ID_CHARACTERS)),
    Column("process", String(ID_CHARACTERS)),
    Column("claims", Integer, nullable=False),
    Column("unmoved", Integer, nullable=False),
    Column("not_before", BigInteger, nullable=False),
    Column("can_move", Boolean, nullable=False),
    Column("by_owner", Boolean, nullable=False),
    Column("tokens", BigInteger, nullable=False),
    Column("cost", Float, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("ended_at", BigInteger),
    Column("expires_at", BigInteger, nullable=False),
    CheckConstraint(
        "status IN ('working', 'input_required', 'completed', 'failed', 'cancelled')", name="pallas_tasks_status"
    ),
    ForeignKeyConstraint(["thread_id", "turn"], ["pallas_turns.thread_id", "pallas_turns.number"], ondelete="CASCADE"),
    Index("pallas_tasks_by_end", "expires_at"),
    Index("pallas_tasks_of_turn", "thread_id", "turn"),
)
"""Calls that go on after their process has ended. `holder` is the secret of the run that may write, `process` its
process; both are null while nobody runs it. `claims` counts runs of later processes, `unmoved` those since the latest
step. `by_owner`: only a request of its owner continues it."""
_works, _is_held, _is_open = tasks.c.status == "working", tasks.c.holder.is_not(None), tasks.c.ended_at.is_(None)
Index("pallas_tasks_to_claim", tasks.c.not_before, sqlite_where=_works, postgresql_where=_works)
Index("pallas_tasks_open", tasks.c.account, sqlite_where=_is_open, postgresql_where=_is_open)
Index("pallas_tasks_of_process", tasks.c.process, sqlite_where=_is_held, postgresql_where=_is_held)


task_steps = Table(
    "pallas_task_steps",
    METADATA,
    Column("task_id", ForeignKey("pallas_tasks.id", ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("kind", String(8), nullable=False),
    Column("turn", Integer, nullable=False),
    Column("tool_call", Text, nullable=False),
    Column("data", JSON, nullable=False),
)
"""The course of tasks that have not ended; see `calls/recording.py: Row`."""


task_questions = Table(
    "pallas_task_questions",
    METADATA,
    Column("task_id", ForeignKey("pallas_tasks.id", ondelete="CASCADE"), primary_key=True),
    Column("id", String(ID_CHARACTERS), primary_key=True),
    Column("question", JSON, nullable=False),
    Column("answer", JSON(none_as_null=True)),
    Column("asked_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
)
"""The questions of tasks; the first answer counts, which may be that there is none."""


used_states = Table(
    "pallas_used_states",
    METADATA,
    Column("ticket", String(ID_CHARACTERS), primary_key=True),
    Column("process", String(ID_CHARACTERS), nullable=False),
    Column("valid_until", BigInteger, nullable=False),
)
"""States of calls of 2026-07-28 that a process has used, until they have expired."""


counters = Table(
    "pallas_counters",
    METADATA,
    Column("id", String(ID_CHARACTERS), primary_key=True),
    Column("scope", String(ID_CHARACTERS), nullable=False),
    Column("calls", BigInteger, nullable=False),
    Column("day", Integer, nullable=False),
    Column("tokens", BigInteger, nullable=False),
    Column("touched_at", BigInteger, nullable=False),
    Index("pallas_counters_of_scope", "scope"),
)
"""Counters of `gateway.limits`: `id` is a hash of the rule (`scope`) and of its caller, agent, or both. `calls` is the
number of the latest counted call, `tokens` those of the `day` (since 1970, UTC)."""


counted_calls = Table(
    "pallas_counted_calls",
    METADATA,
    Column("counter", String(ID_CHARACTERS), primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("began_at", BigInteger, nullable=False),
)
"""When each call of the last minute began."""


processes = Table(
    "pallas_processes",
    METADATA,
    Column("process", String(ID_CHARACTERS), primary_key=True),
    Column("alive_until", BigInteger, nullable=False),
)
"""Processes that renew their row; leases of the others have ended."""


usage = Table(
    "pallas_usage",
    METADATA,
    Column("day", Integer, primary_key=True, autoincrement=False),
    Column("account", String(ID_CHARACTERS), primary_key=True),
    *(Column(name, Text, primary_key=True) for name in ("agent", "model", "failure")),
    Column("caller", Text, nullable=False),
    *(Column(name, BigInteger, nullable=False) for name in ("calls", "refused", "nested", "input", "cache_read")),
    *(Column(name, BigInteger, nullable=False) for name in ("cache_write", "output", "estimated")),
    Column("cost", Float, nullable=False),
)
"""What callers have used on a day (since 1970, UTC). `account` is a hash of the caller's, `failure` the reason of calls
that have failed or were refused, empty for the others."""


call_leases = Table(
    "pallas_call_leases",
    METADATA,
    Column("process", String(ID_CHARACTERS), primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("counter", String(ID_CHARACTERS), primary_key=True),
    Index("pallas_call_leases_of_counter", "counter"),
)
"""Running calls, numbered by their process, with the counters that count them."""


agents = Table(
    "pallas_agents",
    METADATA,
    Column("id", String(ID_CHARACTERS), primary_key=True),
    Column("name", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("owner_name", Text, nullable=False),
    Column("sub_agents", JSON, nullable=False),
    Column("version", Integer, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("deleted_at", BigInteger),
    Column("drops_threads", Boolean, nullable=False),
)
"""Agents of the database. Names with one `key` are taken by each other; a deleted agent keeps its row, so that its id,
and the version numbers of its name, are not used again. With `drops_threads` its threads are still to be deleted."""

_is_living = agents.c.deleted_at.is_(None)
Index("pallas_agents_key", agents.c.key, unique=True, sqlite_where=_is_living, postgresql_where=_is_living)


agent_versions = Table(
    "pallas_agent_versions",
    METADATA,
    Column("agent_id", ForeignKey("pallas_agents.id", ondelete="CASCADE"), primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("editor", Text, nullable=False),
    Column("definition", JSON, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("why", Text),
)


callers = Table(
    "pallas_callers",
    METADATA,
    Column("owner", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("seen_at", BigInteger, nullable=False),
)
"""Callers that have opened the console, with their names for people: agents may be handed over to them."""


agent_changes = Table("pallas_agent_changes", METADATA, Column("number", BigInteger, nullable=False))
"""One row, which each transaction that changes agents updates first; other processes read it to notice changes."""


loaded_configurations = Table(
    "pallas_loaded_configurations",
    METADATA,
    Column("digest", String(64), primary_key=True),
    Column("loaded_at", BigInteger, nullable=False),
)
"""Used by release 0.1.0 only, whose replicas may run beside this one."""


class now(FunctionElement[int]):  # noqa: N801  named like the SQL function it stands for
    """The present time by the database's clock, also in a transaction that has waited for a lock."""

    type = BigInteger()
    inherit_cache = True


@compiles(now, "postgresql")
def _now_of_postgresql(_: now, __: SQLCompiler, **___: Any) -> str:
    return "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)"


@compiles(now, "sqlite")
def _now_of_sqlite(_: now, __: SQLCompiler, **___: Any) -> str:
    return "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
