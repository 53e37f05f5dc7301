"""The admission of one call as the limits give it: it is charged for LLM turns, and ends with the call."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Literal

_MINUTE = 60
type Outcome = Literal["ok", "error", "refused"]


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The end of an admitted call: `reason` is the stop reason, or why it failed; `tokens` are its own."""

    outcome: Outcome
    reason: str
    seconds: float
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Excess:
    """A rule that a running call exceeds: the call ends before its next LLM turn."""

    rule: str
    sentence: str
    retry_after_seconds: int


class Permit:
    """The admission of one call; this one counts nothing.

    `is_charged`: a rule limits tokens, so each LLM turn is charged, and none begins before the answer is known.
    """

    is_charged = False

    async def charge(self, tokens: int) -> Excess | None:
        """Charge the tokens of one LLM turn to the account; 0 only asks. Return the rule that is exceeded."""
        del tokens
        return None

    def end(self, end: CallEnd) -> None:
        """Note the end of the call, once; its leases end."""


NO_PERMIT = Permit()


def duration_text(seconds: float) -> str:
    """Return a wait as `12 s`, `4 min` or `8 h 27 min`, rounded up to the unit."""
    if seconds <= _MINUTE:
        return f"{ceil(seconds)} s"
    hours, minutes = divmod(ceil(seconds / _MINUTE), 60)
    return f"{hours:,} h {minutes} min" if hours else f"{minutes} min"
