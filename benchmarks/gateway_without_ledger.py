"""The gateway without the few lines of each call that ask its ledger: what a call cost before there was one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pallas_gateway.calls.permit import NO_PERMIT
from pallas_gateway.cli.app import main
from pallas_gateway.ledger.own_ledger import OwnLedger
from pallas_gateway.ledger.protocol import CallEntry

if TYPE_CHECKING:
    from pallas_gateway.calls.permit import Permit

_ENTRY = CallEntry("", "", "", "", None, "mcp")


async def _begin(_ledger: OwnLedger, _entry: CallEntry) -> Permit:
    return NO_PERMIT


if __name__ == "__main__":
    entry: Any = CallEntry
    entry.of = lambda _call: _ENTRY
    ledger: Any = OwnLedger
    ledger.begin = _begin
    main()
