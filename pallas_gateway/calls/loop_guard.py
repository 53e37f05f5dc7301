"""Detects an agent that repeats itself, by the requests and results of its tool rounds. Pure.

A round is all tool calls of one LLM turn, whatever their order. Two rounds are the same when every call asked the same
tool with the same arguments *and* got the same result: polling something that changes is not a loop.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Reason = Literal["repeat", "oscillation"]
_ALTERNATING = 2


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """One tool call of a round, with its request and its result in a canonical form.

    `text` is what of the result a log line can show.
    """

    tool: str
    arguments: Mapping[str, Any]
    result: str
    text: str = ""


def signature(round_: Iterable[ToolOutcome]) -> str:
    """Return a value that is equal for rounds with the same requests and results, in any order."""
    calls = sorted(json.dumps([one.tool, normalised(one.arguments), one.result]) for one in round_)
    return hashlib.sha256("\n".join(calls).encode()).hexdigest()


def normalised(arguments: Mapping[str, Any]) -> str:
    """Arguments as canonical JSON: neither the order of keys nor white space makes a difference."""
    return json.dumps(arguments, sort_keys=True, separators=(",", ":"), default=str)


class LoopGuard:
    """Watches the rounds of one agent loop.

    `threshold` identical rounds in a row are a repeat; two alternating rounds (A-B-A-B) are an oscillation at twice
    the threshold. A threshold of 0 sees nothing.
    """

    def __init__(self, threshold: int) -> None:
        self._threshold = threshold
        self._most_recent = max(1, _ALTERNATING * threshold)
        self._recent: list[str] = []  # an empty deque takes 760 bytes

    def after(self, round_: Iterable[ToolOutcome]) -> Reason | None:
        """Add a finished round; return the reason to halt the loop, None to continue."""
        self._recent = [*self._recent, signature(round_)][-self._most_recent :]
        if self._threshold == 0:
            return None
        if self._ends_with_period(1, self._threshold):
            return "repeat"
        if self._ends_with_period(_ALTERNATING, _ALTERNATING * self._threshold):
            return "oscillation"
        return None

    def _ends_with_period(self, period: int, rounds: int) -> bool:
        """True if the last `rounds` rounds repeat with exactly this period."""
        if len(self._recent) < rounds:
            return False
        last = self._recent[-rounds:]
        return all(one == last[index % period] for index, one in enumerate(last)) and len(set(last)) == period


def explanation(reason: Reason, outcome: ToolOutcome, rounds: int) -> str:
    """Return the text about a halted loop, for the user, or for the model of an agent that called this one."""
    did = "called the same tool with the same result" if reason == "repeat" else "went back and forth between two steps"
    return (
        f"[Stopped: the agent {did} for {rounds} rounds without getting anywhere. Last it called "
        f"'{outcome.tool}'. Do not send the same message again: it will not help. The server behind that tool may be "
        "at fault; the gateway's log has the details.]"
    )
