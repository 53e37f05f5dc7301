"""Shows answers of `get_health`: as tables, or as one table that is updated."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pallas_gateway.client.output import counted, local_time, result, table, without_controls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_STYLES = {
    "ok": "green",
    "degraded": "yellow",
    "unreachable": "yellow",
    "unlisted": "yellow",
    "refuses": "yellow",
    "failed": "yellow",
    "error": "red",
}
_COLUMNS = ("AGENT", "SERVER", "STATE", "STATUS", "LATENCY", "SINCE", "LAST ERROR")


@dataclass(frozen=True, slots=True)
class HealthAnswer:
    """The document that one agent answered, and the seconds it took."""

    document: Mapping[str, Any]
    seconds: float

    @property
    def status(self) -> str:
        """`ok`, `degraded` or `error`; `no access` if the caller may not see the agent."""
        return str(self.document.get("status"))


type HealthAnswers = Mapping[str, HealthAnswer]


class HealthRow(NamedTuple):
    """One line: an agent, one of its downstreams, or its model's provider."""

    agent: str
    server: str
    state: str
    status: str
    latency: str
    since: str
    error: str


def print_answers(answers: HealthAnswers) -> None:
    """Print a table of agents and one of their downstreams."""
    summary = [(name, answer.status, str(answer.document.get("message", ""))) for name, answer in answers.items()]
    table("AGENT", "STATUS", "MESSAGE", rows=summary)
    details = [
        (name, row.server, row.status, row.latency, row.since, row.error)
        for name, answer in answers.items()
        for row in _parts(name, answer.document)
    ]
    if details:
        result("")
        table("AGENT", "SERVER", "STATUS", "LATENCY", "SINCE", "ERROR", rows=details)


def rows_of(answers: HealthAnswers) -> list[HealthRow]:
    """Return a row for each agent, followed by those of its downstreams and provider."""
    rows = []
    for name, answer in answers.items():
        agent = _mapping(answer.document.get("agent"))
        message = str(answer.document.get("message", ""))
        state, since = _state(agent), local_time(agent.get("since"))
        rows += [HealthRow(name, "", state, answer.status, _seconds(answer.seconds), since, message)]
        rows += _parts(name, answer.document)
    return rows


def _state(agent: Mapping[str, Any]) -> str:
    state, questions = str(agent.get("state", "")), agent.get("open_questions")
    return f"{state}, {counted(questions, 'question')} open" if isinstance(questions, int) else state


def _parts(agent: str, document: Mapping[str, Any]) -> list[HealthRow]:
    parts = document.get("downstream")
    rows = [
        HealthRow(
            agent,
            str(one.get("name", "")),
            "",
            str(one.get("status", "")),
            _seconds(one.get("seconds")),
            local_time(one.get("since")),
            str(one.get("error", "")),
        )
        for one in (parts if isinstance(parts, list) else ())
        if isinstance(one, dict)
    ]
    if llm := _mapping(document.get("llm")):
        name = f"LLM {llm.get('provider', '')} {llm.get('model', '')}".rstrip()
        status, error = str(llm.get("status", "")), str(llm.get("error", ""))
        rows.append(HealthRow(agent, name, "", status, "", "", error))
    return rows


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _seconds(value: object) -> str:
    return f"{value:.3f} s" if isinstance(value, int | float) else ""


@dataclass
class MemoryUse:
    """The last error of each row, which is shown until another one comes."""

    errors: dict[tuple[str, str], str] = field(default_factory=dict)

    def recall(self, rows: Sequence[HealthRow], now: str) -> list[HealthRow]:
        """Return the rows with their last errors; earlier ones with their time."""
        shown = []
        for row in rows:
            place = row.agent, row.server
            if row.error:
                self.errors[place] = f"{row.error} (last at {now})"
            shown.append(row if row.error else row._replace(error=self.errors.get(place, "")))
        return shown


@contextmanager
def watching(console: Console) -> Iterator[Callable[[Sequence[HealthRow], str], None]]:
    """Yield a function that shows rows under a heading: in place on a terminal, else as one table after the other."""
    if not console.is_terminal:
        yield _print_plain
        return
    with Live(console=console, auto_refresh=False, transient=False) as live:
        yield lambda rows, heading: live.update(drawn(rows, heading), refresh=True)


def _print_plain(rows: Sequence[HealthRow], heading: str) -> None:
    result(heading)
    table(*_COLUMNS, rows=rows)
    result("")


def drawn(rows: Sequence[HealthRow], heading: str) -> Table:
    """Return the rows as a table for a terminal."""
    grid = Table(*_COLUMNS, title=Text(heading), title_justify="left", box=None, header_style="bold")
    for row in rows:
        agent, *others, status, latency, since, error = row
        name = Text("" if row.server else without_controls(agent))
        cells = [Text(without_controls(cell)) for cell in (*others, status, latency, since, error)]
        cells[2].stylize(_STYLES.get(status, ""))
        grid.add_row(name, *cells)
    return grid
