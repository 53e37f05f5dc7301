"""Limits that no setting changes, as parameters of the parts that they hold for.

A gateway and a runtime take them once and hand each part its own.
"""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from contextlib import AbstractContextManager

    type DuringDeadline = Callable[[asyncio.Timeout], AbstractContextManager[object]]


@dataclass(slots=True, kw_only=True)
class LifeLimits:
    """Of starting agents.

    Attributes:
        dependency_seconds: An agent waits so long for those it depends on before it starts without them.
        first_retry_seconds: Pause before the first retry of a failed agent; each further pause is twice as long.
        last_retry_seconds: The longest pause.
        watch_seconds: Interval at which the files behind a failed agent are checked.
    """

    dependency_seconds: float = 60.0
    first_retry_seconds: float = 1.0
    last_retry_seconds: float = 15.0
    watch_seconds: float = 0.5


@dataclass(slots=True, kw_only=True)
class HealthLimits:
    """Of health checks.

    Attributes:
        probe_seconds: Deadline of one probe of a downstream.
        end_seconds: Deadline of the end of a probe's session; no result waits for it.
        leave_seconds: A probed program may take so long to end by itself, and again after a signal.
        fresh_seconds: A round of probes answers later questions for so long.
        program_fresh_seconds: A stdio program that answered is not started again for so long: that would cost more
            than the calls.
        callers_seconds: The gateway's own rounds probe a server that requires callers' tokens no more often.
        refused_seconds: A server that refuses callers' tokens is reported until it accepts one, or for so long after
            the last one.
        preflight_seconds: Deadline of one question to an LLM provider.
        stale_seconds: After this time a `get_health` renews the active provider's result.
    """

    probe_seconds: float = 3.0
    end_seconds: float = 3.0
    leave_seconds: float = 1.0
    fresh_seconds: float = 5.0
    program_fresh_seconds: float = 60.0
    callers_seconds: float = 600.0
    refused_seconds: float = 600.0
    preflight_seconds: float = 5.0
    stale_seconds: float = 300.0


@dataclass(slots=True, kw_only=True)
class BodyLimits:
    """Of the bodies of requests.

    Attributes:
        seconds: A body may take so long,
        bytes_per_second: and a second more for every so many bytes that have come.
        rest_seconds: Longest wait for the rest of a body that the answer does not need.
    """

    seconds: float = 30.0
    bytes_per_second: float = 4096
    rest_seconds: float = 10.0


@dataclass(slots=True, kw_only=True)
class ConnectionLimits:
    """Of connections of clients.

    Attributes:
        idle_seconds: Longer than proxies and clients keep idle connections (60 s), else one is closed just as it is
            used again.
        unread_seconds: Period in which a client that has not read its answer must make progress.
        last_answers_seconds: At a stop, requests may take so long to arrive on the last accepted connections; they are
            answered with 503.
        last_requests_seconds: At a stop, clients get so long after the latest request for a further one, and twice as
            long in all: many list tools to check a result.
    """

    idle_seconds: float = 120.0
    unread_seconds: float = 60.0
    last_answers_seconds: float = 0.2
    last_requests_seconds: float = 1.0


@dataclass(slots=True, kw_only=True)
class DatabaseLimits:
    """Of the gateway's database.

    Attributes:
        first_try_seconds: A start waits so long for the database; agents do not need it.
        try_again_seconds: Pause between further tries.
        try_seconds: A try of an open database may take so long.
        busy_seconds: A writer waits so long for another one of the same SQLite file.
        count_seconds: Longest wait for one transaction that counts calls, by kind of database; after that it counts no
            calls until it has been tried out. Writers of SQLite have no queue: with several busy processes, one
            of them may wait for seconds.
        use_seconds: A request waits so long for one attempt to use the state of its call.
        expired_seconds: What calls of killed processes have left is deleted so long after it expired,
        clean_seconds: and looked for so often.
    """

    first_try_seconds: float = 10.0
    try_again_seconds: float = 3.0
    try_seconds: float = 15.0
    busy_seconds: float = 10.0
    count_seconds: Mapping[str, float] = field(default_factory=lambda: {"postgresql": 1.5, "sqlite": 5.0})
    use_seconds: float = 3.0
    expired_seconds: float = 600.0
    clean_seconds: float = 60.0


@dataclass(slots=True, kw_only=True)
class ThreadLimits:
    """Of threads.

    Attributes:
        copied_bytes: Most bytes of the turns that one request copies to a new thread.
        replayed_turns: Turns of a thread that a model is sent at most.
        replayed_bytes: Most bytes of these turns, with their images as Base64; older turns are left out.
        page_bytes: Most bytes of the turns of one page; a page has at least one turn.
        step_bytes: Most bytes that are kept of each result of a tool, and of the arguments of each call.
        removed_threads: Threads without changes that one statement deletes.
        searched_threads: Threads that one search reads at most; the next page goes on behind them.
        searched_bytes: The same for the bytes of their texts, of which the last turn may have more.
        search_seconds: After this time no further turn is read.
        long_work_seconds: A search or copy waits so long for others of its owner.
    """

    copied_bytes: int = 64 * 1024 * 1024
    replayed_turns: int = 1000
    replayed_bytes: int = 16 * 1024 * 1024
    page_bytes: int = 8 * 1024 * 1024
    step_bytes: int = 16 * 1024
    removed_threads: int = 100
    searched_threads: int = 1000
    searched_bytes: int = 16 * 1024 * 1024
    search_seconds: float = 5.0
    long_work_seconds: float = 5.0


@dataclass(slots=True, kw_only=True)
class TaskLimits:
    """Of calls with which other processes go on.

    Attributes:
        lease_seconds: After this time without a sign of life of a process, others go on with its tasks.
        look_seconds: Pause between two looks for answers that came to other processes, while a question is open.
        claim_seconds: Mean pause of a process between two looks for tasks of ended processes.
        clean_seconds: Pause between two looks for questions whose time is over, and between two counts of tasks.
    """

    lease_seconds: float = 10.0
    look_seconds: float = 0.5
    claim_seconds: float = 2.0
    clean_seconds: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionLimits:
    """Of questions to callers; those beyond are declined, and the model reads the reason.

    Attributes:
        at_once: Questions of one call that are open at once.
        of_one_call: Questions of one call and of the calls nested in it, one after the other or at once.
        message_characters: Longest message.
        schema_characters: Largest schema of a form, as JSON.
        url_characters: Longest address of a page.
        answer_characters: Largest content of an answer, as JSON; a larger one is refused, and the question stays open.
    """

    at_once: int = 32
    of_one_call: int = 100
    message_characters: int = 32 * 1024
    schema_characters: int = 64 * 1024
    url_characters: int = 8 * 1024
    answer_characters: int = 64 * 1024


@dataclass(slots=True, kw_only=True)
class GatewayLimits:
    """Of one gateway."""

    lives: LifeLimits = field(default_factory=LifeLimits)
    health: HealthLimits = field(default_factory=HealthLimits)
    bodies: BodyLimits = field(default_factory=BodyLimits)
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    database: DatabaseLimits = field(default_factory=DatabaseLimits)
    threads: ThreadLimits = field(default_factory=ThreadLimits)
    tasks: TaskLimits = field(default_factory=TaskLimits)
    questions: QuestionLimits = field(default_factory=QuestionLimits)


@dataclass(slots=True, kw_only=True)
class ListingLimits:
    """Of the cached listings of an agent's downstreams.

    Attributes:
        fresh_seconds: After this time a listing is renewed while calls go on with it.
        certain_seconds: After this time without a call a listing is not used: the next call asks by itself.
        ask_seconds: Deadline of a downstream's answer.
        again_seconds: After this time a downstream that could not be asked is asked again, if a call requires it.
        keep_alive_seconds: How long a socket waits for the next request: less than the 2 s (Gunicorn) or 5 s (Uvicorn,
            Node) after which common servers close theirs. A `tools/call` that comes just then fails: it may have run,
            so it is not sent twice.
        credentials: Listings are cached of at most so many callers' credentials,
        kept_bytes: and at most so many bytes of them, as JSON; equal listings count once.
        clock: Measures the age of listings, in seconds.
    """

    fresh_seconds: float = 30.0
    certain_seconds: float = 300.0
    ask_seconds: float = 5.0
    again_seconds: float = 5.0
    keep_alive_seconds: float = 1.5
    credentials: int = 10_000
    kept_bytes: int = 16 * 1024 * 1024
    clock: Callable[[], float] = monotonic


@dataclass(slots=True, kw_only=True)
class ProgramLimits:
    """Of the processes of stdio servers.

    Attributes:
        start_seconds: A process must be initialised within this time, and a connection waits so long for one.
        patience_seconds: A connection waits so long before the oldest question of calls that have a process is closed.
        rehearse_seconds: A process that was initialised lists its tools before it is used; it is used after this time
            without an answer.
        list_seconds: Longest time for the lists of a process that has been initialised.
        replace_seconds: A process that a call has taken is replaced after this time, or when the call ends.
        leave_seconds: A process may take so long to end by itself, and again after a signal.
        first_pause_seconds: After a failure no process of the program is started for so long, doubled after the next.
        last_pause_seconds: The longest pause.
        fresh_seconds: After this time the listing of a program is renewed while calls go on with it.
    """

    start_seconds: float = 20.0
    patience_seconds: float = 5.0
    rehearse_seconds: float = 5.0
    list_seconds: float = 10.0
    replace_seconds: float = 1.0
    leave_seconds: float = 2.0
    first_pause_seconds: float = 1.0
    last_pause_seconds: float = 60.0
    fresh_seconds: float = 300.0


MOST_REQUESTS = 3
"""Most requests of one LLM turn."""
BUSY_SECONDS = 0.005
"""Longest time in which pieces of one answer of a model are processed before other calls run."""
AFTER_LAST_SECONDS = 5.0
"""Longest wait for the end of a model's answer after its last event; then its connection can be kept."""
LARGEST_ANSWER_BYTES = 2**27
"""Of a model, after decompression. The longest answers, 400,000 tokens in an event each, take about 100 MB."""
LARGEST_ERROR_BYTES = 2**18
"""The rest of a provider's error is not read; 200 characters are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmLimits:
    """Of requests to providers of models.

    Attributes:
        first_wait_seconds: Pause before a request is repeated, doubled for the next one. Each pause is shortened by
            chance, so that calls that failed together are not repeated together.
        keep_alive_seconds: How long a socket waits for the next turn: less than the 5 s after which common servers
            close theirs.
    """

    first_wait_seconds: float = 0.5
    keep_alive_seconds: float = 3.0


async def ends_within(task: asyncio.Task[object], seconds: float, during: DuringDeadline = nullcontext) -> bool:
    """Wait for the end of `task`, `seconds` at most; return False if it has not ended.

    `during` is a context manager for the time of waiting; it may suspend the deadline.
    """
    deadline = asyncio.timeout(seconds)
    try:
        async with deadline:
            with during(deadline):
                await asyncio.wait({task})
    except TimeoutError:
        return task.done()
    finally:
        del deadline  # a task that is cancelled here has this frame, and the deadline has the task
    return True


@dataclass(slots=True, kw_only=True)
class RuntimeLimits:
    """Of the runtime.

    Attributes:
        import_seconds: An agent fails whose module takes longer to import.
        import_turn_seconds: Other imports wait so long for one that is under way before they begin: it may hang.
        making_seconds: A declared agent fails that takes longer to be made; its instruction may name a URL.
        attach_seconds: A call waits so long for one downstream before it runs without that server's tools.
        attach_seconds_after_timeout: The same for a downstream that has just timed out: not every call should cost
            the full time.
        outage_seconds: A downstream that flaps goes down, and comes back, in the log once in this time.
        listings: Of cached listings.
        programs: Of the processes of stdio servers.
        llm: Of requests to providers of models.
        ends_within: Measures the deadline of a call.
        dispose_seconds: After this time a disposal that is not done is worth a line in the log.
        give_up_seconds: After this time a disposal is given up: a hung MCP child must not be waited for for ever.
            Interrupted any earlier, what a busy machine only takes its time to release would be lost.
    """

    import_seconds: float = 60.0
    import_turn_seconds: float = 5.0
    making_seconds: float = 60.0
    attach_seconds: float = 5.0
    attach_seconds_after_timeout: float = 1.0
    outage_seconds: float = 60.0
    listings: ListingLimits = field(default_factory=ListingLimits)
    programs: ProgramLimits = field(default_factory=ProgramLimits)
    llm: LlmLimits = field(default_factory=LlmLimits)
    ends_within: Callable[[asyncio.Task[object], float, DuringDeadline], Awaitable[bool]] = ends_within
    dispose_seconds: float = 10.0
    give_up_seconds: float = 120.0
