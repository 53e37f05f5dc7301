"""Limits on the size of a log record.

Sizes are characters of the JSON form, the longest: one character may take twelve. A text is cut before it is searched
for secrets, by `redaction.shortened`, which shows no part of a secret at the cut.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from itertools import islice
from typing import Any

from pallas_gateway.telemetry.redaction import HIDDEN, end_of, hides_its_value, shortened

LONGEST_TEXT = 1_500  # of a message or a field
LONGEST_ID = 200  # of a conversation's id, which is in every record of a call
LONGEST_TRACEBACK = 5_000
LONGEST_ENDING = 400  # of a traceback's last line, the exception
MOST_ENTRIES = 50  # of a list or a mapping
MOST_LEVELS = 8
_LEFT_OUT = "…"
_LEAST = 30  # of an entry when the limit is nearly reached
_LONGEST_CHARACTER = 12  # an emoji is two escapes of six
_encoded = json.JSONEncoder(default=str).encode


def fitted(text: str, limit: int = LONGEST_TEXT) -> str:
    """The text, shortened if its JSON form is longer than `limit`."""
    if _fits(text, limit):
        return text
    short = shortened(text, limit)
    while (size := _size(short)) > limit:
        short = f"{short[: len(short) * limit // size - 1]}{_LEFT_OUT}"
    return short


def fitted_field(name: str, value: object) -> Any:
    if name == "exception":
        return fitted_traceback(str(value))
    return _fitted(value, name, LONGEST_ID if name == "conversation_id" else LONGEST_TEXT, MOST_LEVELS)


def fitted_traceback(text: str) -> str:
    """A traceback; a long one without its middle."""
    if _fits(text, LONGEST_TRACEBACK):
        return text
    last = text.rstrip("\n").rfind("\n") + 1
    text = text[:last] + fitted(text[last:], LONGEST_ENDING)
    if _fits(text, LONGEST_TRACEBACK):
        return text
    head, rest = LONGEST_TRACEBACK // 4, LONGEST_TRACEBACK * 3 // 4
    end = end_of(text, rest)
    while (size := _size(end)) > rest:
        end = end[-(len(end) * rest // size - 1) :]
    return f"{fitted(text, head)}\n{end}"


def _fitted(value: object, name: str, limit: int, levels: int) -> Any:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if not isinstance(value, str) and isinstance(value, (Mapping, list, tuple, set, frozenset)):
        return _fitted_entries(value, name, limit, levels - 1) if levels else _LEFT_OUT
    text = value if isinstance(value, str) else str(value)
    return HIDDEN if len(text) > limit and hides_its_value(name) else fitted(text, limit)


def _fitted_entries(value: Collection[Any], name: str, limit: int, levels: int) -> Any:
    """The first entries of a list or a mapping that fit into `limit` together."""
    is_mapping = isinstance(value, Mapping)
    entries: Iterable[tuple[Any, Any]] = value.items() if isinstance(value, Mapping) else ((name, one) for one in value)
    kept: list[tuple[str, Any]] = []
    for key, one in islice(entries, MOST_ENTRIES):
        if limit <= 0:
            break
        shown = fitted(str(key), limit) if is_mapping else ""
        limit = max(_LEAST, limit - _size(shown))
        kept.append((shown, _fitted(one, str(key), limit, levels)))
        limit -= _size(kept[-1][1])
    if not is_mapping:
        return [one for _, one in kept] + ([_LEFT_OUT] if len(kept) < len(value) else [])
    return dict(kept) | ({_LEFT_OUT: len(value) - len(kept)} if len(kept) < len(value) else {})


def _fits(text: str, limit: int) -> bool:
    return len(text) * _LONGEST_CHARACTER <= limit or (len(text) <= limit and _size(text) <= limit)


def _size(value: object) -> int:
    return len(str(value) if type(value) is int else _encoded(value))  # the encoder takes three times as long
