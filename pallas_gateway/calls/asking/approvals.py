"""Tools that need the approval of the caller before they run, by the agent's policy. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from typing import Any
from unicodedata import category

from pallas_gateway.calls.questions import Answer, Question
from pallas_gateway.config.loading.tool_policies import DESTRUCTIVE
from pallas_gateway.errors import CallRefusedError

LONGEST_ARGUMENTS = 16 * 1024
"""Characters of a tool's arguments that the caller is shown."""
_INVISIBLE = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})
"""Categories of Unicode; tags are of `Cf` and `Cn`."""
# Variation selectors; letters and a mark that Unicode calls ignorable: the fillers of Hangul, two vowels, a joiner.
_OTHERS_INVISIBLE = re.compile(
    "[\u180b-\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0]"
)
_UTF_16 = re.compile("(....)")
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


class ApprovalRequiredError(CallRefusedError):
    """The tool of the request requires an approval that the request does not bring; `question` is to be asked."""

    reason = "approval_required"

    def __init__(self, question: Question) -> None:
        super().__init__(f"The tool '{question.tool}' requires the approval of the caller.")
        self.question = question


class Approvals:
    """The approvals of one call.

    `patterns` are globs over `server/tool` (`local/tool` for functions of the agent) and `DESTRUCTIVE`. With
    `allow_unasked`, tools run if the caller cannot be asked. With `refuse_request`, the question goes back in an
    `ApprovalRequiredError`, because its request is for the tool itself. `allowed` are patterns whose tools the
    caller has approved for the rest of the call.
    """

    def __init__(
        self, patterns: Collection[str] = (), *, allow_unasked: bool = False, refuse_request: bool = False
    ) -> None:
        self.patterns = tuple(patterns)
        self._allow_unasked = allow_unasked
        self._refuse_request = refuse_request
        self.allowed: tuple[str, ...] = ()

    def needed_for(self, tool: str, *, destructive: bool) -> bool:
        """Return True if the tool `server/tool` needs an approval that the caller has not given for the whole call."""
        needed, allowed = (
            (destructive and DESTRUCTIVE in patterns) or any(fnmatchcase(tool, glob) for glob in patterns)
            for patterns in (self.patterns, self.allowed)
        )
        return needed and not allowed

    def take(self, answer: Answer, question: Question, asked_under: Collection[str] | None = None) -> str | None:
        """Return why the tool of a question may not run, as a clause; None if it may.

        `asked_under` are the patterns of the process that had asked, if the call is resumed: `call` approves the tools
        of these, and the tool does not run without an answer.

        Raises:
            ApprovalRequiredError: the request has to bring the answer.
        """
        if answer.outcome == "unaskable" and self._refuse_request:
            raise ApprovalRequiredError(question)
        if answer.outcome == "unaskable":
            is_allowed = self._allow_unasked and asked_under is None
            return None if is_allowed else "this caller cannot be asked for it"
        decision = (answer.content or {}).get("decision")
        if answer.outcome != "accepted" or decision not in {"once", "call"}:
            return answer.why or "the caller did not give it"
        if decision == "call":
            self.allowed += self.patterns if asked_under is None else tuple(asked_under)
        return None


def approval_question(tool: str, arguments: Mapping[str, Any]) -> Question:
    """Return the question about a tool, with its arguments, or with a note that they are cut.

    They are JSON in which invisible characters are escapes, so that a person sees all that the tool receives.
    """
    written = json.dumps(arguments, ensure_ascii=False, indent=2)
    shown, length = [], 0
    for character in written[:LONGEST_ARGUMENTS]:
        shown.append(character if character == "\n" else _seen(character))  # a text's own newline is an escape already
        length += len(shown[-1])
        if length > LONGEST_ARGUMENTS:
            shown.pop()
            break
    if hidden := len(written) - len(shown):
        shown.append(f"… (cut: {hidden} characters of {len(written)} are not shown)")
    name = "".join(map(_seen, tool))
    message = f"May the tool {name} run with these arguments?\n{''.join(shown)}"
    return Question("approval", message, schema=_SCHEMA, tool=tool)


def _seen(character: str) -> str:
    r"""Return a character as a person sees it: an invisible one is its escape in JSON, as `\u200b`."""
    if category(character) not in _INVISIBLE and not _OTHERS_INVISIBLE.match(character):
        return character
    return _UTF_16.sub(r"\\u\1", character.encode("utf-16-be", "surrogatepass").hex())
