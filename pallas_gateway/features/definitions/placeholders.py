r"""Placeholders in texts of a definition: only those that tell nothing about the machine. Pure.

fast-agent replaces `{{name}}` twice: `currentDate` and `url` when an agent is made, all others when it starts. A plain
text is never read as a path or fetched as a URL. Refused is whatever either pass, or one of a later version, could take
for a placeholder: any spelling, the escape `\{{`, and what could result from parts that are replaced first.
"""

from __future__ import annotations

import re

ALLOWED = ("{{currentDate}}", "{{serverInstructions}}")
_OF_FAST_AGENT = "__FAST_AGENT_"
"""Begins the texts that stand for escaped braces within a pass of fast-agent's."""
_UNSEEN = r"\u00ad\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff"
_PLACEHOLDER = re.compile(rf"\{{[{_UNSEEN}]*\{{[\s{_UNSEEN}]*(?:[^\W\d]|\{{)")
_ALLOWED = re.compile("|".join(map(re.escape, ALLOWED)))
_SHOWN = 60


def why_refused(text: str) -> str | None:
    """Return what is wrong with the placeholders of a text; None if there are none but those that are allowed."""
    start = text.find("${")
    if start >= 0 and (end := text.find("}", start)) >= 0:
        return f"'{_shown(text[start : end + 1])}': variables of the environment cannot be used"
    if _OF_FAST_AGENT in text:
        return f"must not hold '{_OF_FAST_AGENT}', which fast-agent uses itself"
    for value in ("x", ""):  # `serverInstructions` may be empty, and then joins what stands around it
        rest = _ALLOWED.sub(value, text)
        if (found := _PLACEHOLDER.search(rest)) is not None:
            return f"'{_shown(rest[found.start() :])}': only {' and '.join(ALLOWED)} can be used between double braces"
    return None


def _shown(text: str) -> str:
    return " ".join(text[:_SHOWN].split())
