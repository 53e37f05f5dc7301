"""Running and ended calls as tables for people, and the changes between two lists. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, BeforeValidator, Field

from pallas_gateway.client.output import local_time

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LONGEST_NAME = 60
RUNNING_COLUMNS = ("CALL", "AGENT", "CALLER", "API", "STEP", "SECONDS", "TOKENS", "STATE", "WORKER")
RECENT_COLUMNS = ("CALL", "AGENT", "CALLER", "API", "STARTED", "SECONDS", "STEP", "TOKENS", "OUTCOME")
type Line = tuple[str, ...]


def shown(text: object) -> str:
    """Return a name on one line, cut, without control and bidirectional characters: callers and models write names."""
    begin = str(text)[: LONGEST_NAME + 1]
    printable = "".join(one if one.isprintable() else "�" for one in begin)
    return printable if len(printable) <= LONGEST_NAME else f"{printable[:LONGEST_NAME]}…"


type _Shown = Annotated[str, BeforeValidator(shown)]
type _Optional = Annotated[str | None, BeforeValidator(lambda text: None if text is None else shown(text))]


class RemoteTool(BaseModel):
    """A tool call of an ended call."""

    name: _Shown
    start: float
    seconds: float
    ok: bool | None

    @property
    def outcome(self) -> str:
        """The end of the tool."""
        return "not ended" if self.ok is None else "ok" if self.ok else "failed"


class RemoteCall(BaseModel):
    """One call of a list of `/api/v1/calls`; `outcome` and `stop_reason` are None while it runs."""

    id: _Shown
    parent: _Optional = None
    agent: _Shown
    caller: _Shown
    api: _Shown
    started_at: _Shown = Field(alias="startedAt")
    seconds: float
    step: int
    tokens: int
    waiting: bool
    worker: int | None
    status_message: _Shown = Field(default="", alias="statusMessage")
    runs: int = 1
    at_rest: bool = Field(default=False, alias="atRest")
    outcome: _Optional = None
    stop_reason: _Optional = Field(default=None, alias="stopReason")
    tools: tuple[RemoteTool, ...] = Field(default=(), repr=False)
    tools_left_out: int = Field(default=0, alias="toolsLeftOut")

    @property
    def state(self) -> str:
        """What a running call does, and the last step of a long call that no worker runs."""
        here = "runs" if self.worker is not None else "at rest" if self.at_rest else "runs at another replica"
        facts = [self.status_message, f"run {self.runs}" if self.runs > 1 else ""]
        return ", ".join(["waits for its caller" if self.waiting else here, *filter(None, facts)])

    @property
    def ending(self) -> str:
        """The outcome with its reason."""
        return f"{self.outcome or 'ended'} ({self.stop_reason})" if self.stop_reason else self.outcome or "ended"


def running_lines(calls: Sequence[RemoteCall]) -> list[Line]:
    """Return the lines of running calls; nested ones stand below the call that has made them."""
    return [
        (
            one.id,
            "  " * depth + one.agent,
            one.caller,
            one.api,
            str(one.step),
            f"{one.seconds:.1f}",
            str(one.tokens),
            one.state,
            "" if one.worker is None else str(one.worker),
        )
        for depth, one in tree(calls)
    ]


def recent_lines(calls: Sequence[RemoteCall]) -> list[Line]:
    """Return the lines of ended calls, each with its tools by the time of their start, and its nested calls."""
    return [line for depth, one in tree(calls) for line in _ended(one, "  " * depth)]


def _ended(call: RemoteCall, indent: str) -> Iterator[Line]:
    started, seconds = local_time(call.started_at), f"{call.seconds:.1f}"
    counts = (str(call.step), str(call.tokens))
    yield (call.id, indent + call.agent, call.caller, call.api, started, seconds, *counts, call.ending)
    for tool in call.tools:
        start, taken = f"+{tool.start:.1f}", f"{tool.seconds:.1f}"
        yield ("", f"{indent}  - {tool.name}", "", "", start, taken, "", "", tool.outcome)
    if call.tools_left_out:
        yield ("", f"{indent}  - and {call.tools_left_out} more", *[""] * 7)


def tree(calls: Sequence[RemoteCall]) -> Iterator[tuple[int, RemoteCall]]:
    """Yield the calls in order with their depth, nested ones after their parents; one without a listed parent is 0."""
    ids = {one.id for one in calls}
    nested: dict[str | None, list[RemoteCall]] = {}
    for one in calls:
        nested.setdefault(one.parent if one.parent in ids else None, []).append(one)
    unseen = [(0, one) for one in reversed(nested.pop(None, []))]
    while unseen:
        depth, one = unseen.pop()
        yield depth, one
        # Popped, so that calls which name each other as parents end the walk.
        unseen += [(depth + 1, child) for child in reversed(nested.pop(one.id, []))]


def changes(before: Sequence[RemoteCall], now: Sequence[RemoteCall], ended: Sequence[RemoteCall]) -> Iterator[str]:
    """Yield a line for each call that began, ended, waits for its caller or goes on; `ended` has recent outcomes."""
    earlier, later = {one.id: one for one in before}, {one.id: one for one in now}
    outcomes = {one.id: one for one in ended}
    for one in now:
        if (known := earlier.get(one.id)) is None:
            below = f", called by {one.parent}" if one.parent else ""
            yield f"began    {one.id}  {one.agent}  {one.caller}  {one.api}{below}"
        elif one.waiting is not known.waiting:
            yield f"{'waits' if one.waiting else 'goes on':<8} {one.id}  {one.agent}"
    for one in before:
        if one.id not in later:
            last = outcomes.get(one.id, one)
            spent = f"{last.seconds:.1f} s  {last.step} turns  {last.tokens} tokens"
            yield f"ended    {one.id}  {one.agent}  {last.ending}  {spent}"
