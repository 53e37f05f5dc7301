"""The rows that a worker and its parent exchange for the ledger, each as the values of one call over their channel.

Each admission and each charge has a number of its worker, by which it is answered. The first value of a row is its
kind (of a request) or the number of what it answers. Every call sends rows, so they have no class each.
"""

from __future__ import annotations

from dataclasses import fields
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
values_of_entry: Callable[[CallEntry], tuple[Any, ...]] = attrgetter(*(field.name for field in fields(CallEntry)))
values_of_end: Callable[[CallEnd], tuple[Any, ...]] = attrgetter(*(field.name for field in fields(CallEnd)))


def row_of_decision(decision: Decision) -> Row:
    return [NOTE, decision.action, decision.outcome, dict(decision.facts)]
