"""The tree of agent calls behind one call, rebuilt from the payloads of its assistant stream: a client's own reader.

It knows only what is on the wire. A payload without `call_path` is the called agent's own. One with it came from the
call whose id is its first element, made within the call of the second element, and so on out to the called agent;
`via_agent` names the server of each. What those calls asked for stands in `tool_calls` of the payloads one level up.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Path = tuple[str, ...]


@dataclass
class CallNode:
    """One call: of the agent that was called (no `call_id`), or of a tool by an agent above it.

    `texts` is what the agents of that call said, by agent in order of appearance: a workflow has several. A plain tool
    has none.
    """

    call_id: str | None = None
    server: str | None = None
    tool: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    texts: dict[str, list[str]] = field(default_factory=dict)
    results: list[str] = field(default_factory=list)
    calls: list["CallNode"] = field(default_factory=list)

    def outline(self, depth: int = 0) -> list[str]:
        """The tree as lines without ids, so that it can be compared with one written by hand."""
        asked = f"{self.server}/{self.tool} {json.dumps(dict(self.arguments))}: " if self.call_id is not None else ""
        said = "; ".join(f"{agent} says {' | '.join(filter(None, texts))}" for agent, texts in self.texts.items())
        below = [line for call in self.calls for line in call.outline(depth + 1)]
        return [f"{'  ' * depth}{asked}{said}".rstrip(), *below]


def call_tree(payloads: Iterable[Mapping[str, Any]]) -> CallNode:
    """Rebuild the tree.

    Raises:
        ValueError: a payload contradicts itself or another one, or belongs to a call that nobody made.
    """
    nodes: dict[Path, CallNode] = {(): CallNode()}
    for payload in payloads:
        path: Path = tuple(payload.get("call_path", ()))
        node = _node_of(nodes, path, payload.get("via_agent", ()))
        if payload["kind"] == "assistant_chunk":
            node.texts.setdefault(payload["agent"], []).append(payload["text"])
            _note_calls(nodes, path, payload["tool_calls"])
        elif payload["kind"] == "assistant_chunk_results":
            _note_results(nodes, path, payload["results"])
    return nodes[()]


def _node_of(nodes: Mapping[Path, CallNode], path: Path, via: Sequence[str]) -> CallNode:
    if len(via) != len(path):
        raise ValueError(f"via_agent {list(via)} and call_path {list(path)} differ in length")
    if (node := nodes.get(path)) is None:
        raise ValueError(f"nobody asked for the call {list(path)} that via_agent {list(via)} leads through")
    servers = [nodes[path[level:]].server for level in range(len(path))]
    if servers != list(via):
        raise ValueError(f"call_path {list(path)} went to {servers}, via_agent says {list(via)}")
    return node


def _note_calls(nodes: dict[Path, CallNode], path: Path, calls: Iterable[Mapping[str, Any]]) -> None:
    for call in calls:
        below = (call["id"], *path)
        if below in nodes:
            raise ValueError(f"two calls have the id {call['id']}")
        nodes[below] = CallNode(call["id"], call["server"], call["name"], call["arguments"])
        nodes[path].calls.append(nodes[below])


def _note_results(nodes: Mapping[Path, CallNode], path: Path, results: Iterable[Mapping[str, Any]]) -> None:
    for result in results:
        if (node := nodes.get((result["id"], *path))) is None:
            raise ValueError(f"a result for {result['id']}, which nobody asked for")
        node.results.append(result["text"])
