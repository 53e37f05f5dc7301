"""Tools that need the approval of the caller before they run, by the agent's policy. Pure."""

from __future__ import annotations

import json
import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from pallas_gateway.calls.questions import Question

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pallas_gateway.calls.questions import Answer

DESTRUCTIVE = "destructive"
"""The entry of a policy that stands for tools whose own annotations have `destructiveHint`."""
LONGEST_ARGUMENTS = 16 * 1024
"""Characters of a tool's arguments that the caller is shown."""
_SCHEMA = {
    "type": "object",
    "properties": {
        "decision": {
            "type": "string",
            "title": "Decision",
            "description": "once: this time; call: this and all others of this call; deny: do not run it",
            "enum": ["once", "call", "deny"],
        }
    },
    "required": ["decision"],
}


class Approvals:
    """The approvals of one call.

    `patterns` are globs over `server/tool` (`local/tool` for functions of the agent) and `DESTRUCTIVE`. With
    `allow_unasked`, tools run if the caller cannot be asked. `allowed` are patterns whose tools the caller has approved
    for the rest of the call.
    """

    def __init__(self, patterns: Collection[str] = (), *, allow_unasked: bool = False) -> None:
        self.patterns = tuple(patterns)
        self._allow_unasked = allow_unasked
        self.allowed: tuple[str, ...] = ()

    def needed_for(self, tool: str, *, destructive: bool) -> bool:
        """Return whether the tool `server/tool` needs an approval that the caller has not given for the whole call."""
        needed, allowed = (
            (destructive and DESTRUCTIVE in patterns) or any(fnmatchcase(tool, glob) for glob in patterns)
            for patterns in (self.patterns, self.allowed)
        )
        return needed and not allowed

    def take(self, answer: Answer, asked_under: Collection[str] | None = None) -> str | None:
        """Return why a tool may not run, as a clause; None if it may.

        `asked_under` are the patterns of the process that had asked, if the call is resumed: `call` approves the tools
        of these, and the tool does not run without an answer.
        """
        if answer.outcome == "unaskable":
            is_allowed = self._allow_unasked and asked_under is None
            return None if is_allowed else "this caller cannot be asked for it"
        decision = (answer.content or {}).get("decision")
        if answer.outcome != "accepted" or decision not in {"once", "call"}:
            return answer.why or "the caller did not give it"
        if decision == "call":
            self.allowed += self.patterns if asked_under is None else tuple(asked_under)
        return None


def may_name_tools_of(server: str, pattern: str) -> bool:
    """Return whether an entry of a policy can apply to tools of a server, as far as its beginning shows."""
    beginning, tools = re.split(r"[*?\[]", pattern, maxsplit=1)[0], f"{server}/"
    return pattern == DESTRUCTIVE or tools.startswith(beginning) or beginning.startswith(tools)


def approval_question(tool: str, arguments: Mapping[str, Any]) -> Question:
    """Return the question whether a tool may run: with its complete arguments, or saying that they are cut."""
    shown = json.dumps(arguments, ensure_ascii=False, indent=2)
    if len(shown) > LONGEST_ARGUMENTS:
        rest = f"… (cut: {len(shown) - LONGEST_ARGUMENTS} characters of {len(shown)} are not shown)"
        shown = shown[:LONGEST_ARGUMENTS] + rest
    return Question("approval", f"May the tool {tool} run with these arguments?\n{shown}", schema=_SCHEMA, tool=tool)
