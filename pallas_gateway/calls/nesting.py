"""The depth of nested calls, as requests to other gateways state it."""

from __future__ import annotations

from math import inf

META_KEY = "pallas/nesting"
"""In `_meta` of a `tools/call`: the number of calls above it, sent to all downstreams, of which some are gateways."""
_MOST = 1_000_000


def stated(value: object) -> int:
    """Return the number of calls above a call, as its client states it; 0 for other values.

    It is a lower bound: by a number a client reaches the limit earlier. It never counts as a call of this gateway.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < inf:
        return 0
    return int(min(value, _MOST))
