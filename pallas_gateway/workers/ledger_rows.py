"""The rows that a worker and its parent exchange for the ledger: JSON arrays, of which one line holds several.

Each admission and each charge has a number of its worker, by which it is answered. The first value of a row is its
kind (of a request) or the number of what it answers. Every call sends rows, so they have no class each.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from pallas_gateway.calls.permit import CallEnd
from pallas_gateway.ledger.protocol import CallEntry

if TYPE_CHECKING:
    from collections.abc import Callable

    from pallas_gateway.ledger.protocol import Decision

type Row = list[Any]

BEGIN, CHARGE, END, NOTE, ASK_USED = "begin", "charge", "end", "note", "ask_used"
"""Kinds of requests: `number, *entry`; `number, number of the admission, tokens`; `number of the admission, *end`;
`action, outcome, facts`; `number, caller, account, agents`."""
ADMITTED, LIMITED, REFUSED, CHARGED, USED = "admitted", "limited", "refused", "charged", "used"
"""Kinds of answers: `is_charged`; message and fields of a `CallLimitedError`; message and reason; an `Excess`, or
nothing; a list of `UsedLimit`."""
LONGEST_FACT = 10_000
"""Characters of one fact of a decision, so that its row fits into a line. The names in other rows come from the headers
of a request, which are shorter."""
_encode = json.JSONEncoder(separators=(",", ":")).encode
values_of_entry: Callable[[CallEntry], tuple[Any, ...]] = attrgetter(*(field.name for field in fields(CallEntry)))
values_of_end: Callable[[CallEnd], tuple[Any, ...]] = attrgetter(*(field.name for field in fields(CallEnd)))


@dataclass(frozen=True, slots=True)
class LedgerRows:
    """Requests of a worker to the ledger, or its answers: those of one moment."""

    rows: list[Row]

    def lines(self, longest: int) -> bytes:
        """Encode the rows as one line, or as a line each if one would be longer than `longest`."""
        line = _encode(self.rows).encode() + b"\n"
        if len(line) <= longest or len(self.rows) == 1:
            return line
        return b"".join(LedgerRows([row]).lines(longest) for row in self.rows)


def row_of_decision(decision: Decision) -> Row:
    facts = {name: value[:LONGEST_FACT] if isinstance(value, str) else value for name, value in decision.facts.items()}
    return [NOTE, decision.action, decision.outcome, facts]


class RowSender:
    """Sends rows: those of one iteration of the event loop together."""

    def __init__(self, send: Callable[[LedgerRows], object]) -> None:
        self._send = send
        self._rows: list[Row] = []

    def add(self, row: Row) -> None:
        if not self._rows:
            asyncio.get_running_loop().call_soon(self.flush)
        self._rows.append(row)

    def flush(self) -> None:
        """Send what was added and not sent yet."""
        rows, self._rows = self._rows, []
        if rows:
            self._send(LedgerRows(rows))
