"""The downstream `library` of the example: an MCP server over stdio with two tools, and the notes that it searches.

`python -m pallas_gateway.example.downstream` runs it, as fast-agent does by `fastagent.config.yaml`.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

from mcp.server.mcpserver import MCPServer
from pydantic import Field

server = MCPServer(
    "library", version="1.0.0", instructions="Notes about MCP, fast-agent and Pallas Gateway, and the time."
)
TITLE_WEIGHT = 3  # of a word in the title, relative to one in the text
MOST_FOUND = 2

_FILLER_WORDS = (
    "a about an and are as at be by can could do does explain find for from have how i in is it look me my of on or "
    "please research search should so tell that the their them there they this to up us was we what when where which "
    "who why will with would you your"
)
_FILLER = frozenset(_FILLER_WORDS.split())


@server.tool(
    title="Search the library",
    description="Search short notes about MCP, fast-agent and Pallas Gateway. Returns the notes that fit best, or the "
    "subjects there are notes on. Use it before answering any question about these.",
    structured_output=False,
)
def search(query: Annotated[str, Field(description="A few words or a question.")]) -> str:
    """The best notes as text, or the list of subjects."""
    found = find(query)
    if not found:
        return f"There is no note on that. Subjects: {', '.join(note.title for note in NOTES)}."
    return "\n".join(f"{note.title}: {note.text}" for note in found)


@server.tool(
    title="Date and time",
    description="The current date and time in UTC. Use it whenever an answer depends on today's date.",
    structured_output=False,
)
def now() -> str:
    """For example `Friday, 2026-01-02, 15:04 UTC`."""
    return datetime.now(UTC).strftime("%A, %Y-%m-%d, %H:%M UTC")


@dataclass(frozen=True)
class Note:
    """One note. Attributes: title: its subject in a word or two; text: a few sentences."""

    title: str
    text: str


NOTES = (
    Note(
        "MCP",
        "The Model Context Protocol is how AI programs reach tools and data: a server offers tools, prompts and "
        "resources, and any client can list and use them.",
    ),
    Note(
        "fast-agent",
        "fast-agent is a Python framework for agents. An agent is a function with a decorator that names its "
        "instruction, its model and the MCP servers whose tools it may use.",
    ),
    Note(
        "Gateway",
        "Pallas Gateway hosts many fast-agent agents in one process, each as an MCP server of its own at "
        "/agents/<name>/mcp on one port.",
    ),
    Note("Agent", "A hosted agent is a fast-agent program with a name in agents.yaml. Clients use it as one MCP tool."),
    Note(
        "Message tool",
        "Every agent offers send_message, also under the agent's own name. It takes the message, and if need be "
        "images, the history of the conversation and an id to recognise it by.",
    ),
    Note(
        "History",
        "The gateway remembers nothing between two calls. A client that wants a conversation sends its earlier turns "
        "along as history, and the agent then knows what was said.",
    ),
    Note(
        "Downstream",
        "A downstream is an MCP server that an agent calls, such as this library. When one cannot be reached, calls "
        "go on without its tools and health says degraded.",
    ),
    Note(
        "Peer",
        "A peer is an agent of the same gateway that another agent calls like a downstream. The call stays in the "
        "process of the gateway; its progress and a cancellation pass through both agents.",
    ),
    Note(
        "Heartbeat",
        "While a call works in silence, a client that asked for progress gets a heartbeat, by default every 15 "
        "seconds, so that it does not give up waiting.",
    ),
    Note(
        "Health",
        "get_health tells whether an agent can work: ok, degraded or error, with the reason. It asks the agent's "
        "downstreams and never a model.",
    ),
    Note(
        "Registry",
        "The gateway lists its agents at /v0.1/servers as an MCP registry does, with title, description, address and "
        "capabilities, so that clients can find them.",
    ),
    Note(
        "Loop guard",
        "When an agent repeats the same tool call with the same result three times in a row, the loop guard halts it "
        "and tells the user, before more tokens are spent.",
    ),
    Note(
        "Bearer token",
        "A caller's bearer token is known for one call only. It goes to downstreams marked forward_inbound_auth and "
        "to no others.",
    ),
    Note(
        "Metrics",
        "/metrics shows calls, durations, tool calls and tokens of every agent in the Prometheus text format.",
    ),
)


def find(query: str) -> list[Note]:
    """The notes with the most words of `query`, best first, at most `MOST_FOUND`; empty if none has any."""
    wanted = _words(query)
    scores = {note: _score(note, wanted) for note in NOTES}
    best = sorted((note for note in NOTES if scores[note]), key=lambda note: -scores[note])
    return [note for note in best[:MOST_FOUND] if 2 * scores[note] >= scores[best[0]]]


def _score(note: Note, wanted: frozenset[str]) -> int:
    return TITLE_WEIGHT * len(wanted & _words(note.title)) + len(wanted & _words(note.text))


def _words(text: str) -> frozenset[str]:
    """Lower-case words in the singular, so that `peers` finds `peer`; filler words are left out."""
    found = re.findall(r"[a-z0-9]+(?:[-_][a-z0-9]+)*", text.lower())
    return frozenset(word.rstrip("s") or word for word in found if word not in _FILLER)


if __name__ == "__main__":
    server.run()
