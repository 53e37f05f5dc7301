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
    `allow_unasked`, tools run if the caller cannot be asked. `all_allowed`: the caller has approved all for this call.
    """

    def __init__(self, patterns: Collection[str] = (), *, allow_unasked: bool = False) -> None:
        self._globs = [one for one in patterns if one != DESTRUCTIVE]
        self._destructive = DESTRUCTIVE in patterns
        self._allow_unasked = allow_unasked
        self.all_allowed = False

    @property
    def are_needed(self) -> bool:
        """Return whether any tool needs an approval."""
        return bool(self._globs or self._destructive) and not self.all_allowed

    def needed_for(self, tool: str, *, destructive: bool) -> bool:
        """Return whether the tool `server/tool` needs an approval."""
        return (destructive and self._destructive) or any(fnmatchcase(tool, glob) for glob in self._globs)

    def take(self, answer: Answer) -> str | None:
        """Return why a tool may not run, as a clause; None if it may."""
        if answer.outcome == "unaskable":
            return None if self._allow_unasked else "this caller cannot be asked for it"
        decision = (answer.content or {}).get("decision")
        if answer.outcome != "accepted" or decision not in {"once", "call"}:
            return answer.why or "the caller did not give it"
        self.all_allowed = self.all_allowed or decision == "call"
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
