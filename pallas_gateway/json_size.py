"""An upper bound of the values in a JSON text, found without parsing it. Pure.

A parser makes an object of 50 to 100 bytes of every `{}`, `[]` and `"a"`: a body within the limit of its bytes can
become thirty times as much memory, and the event loop stands still meanwhile. So such bodies are refused unparsed.
"""

from __future__ import annotations

import re

MOST_VALUES = 500_000
"""JSON values of one request body. The longest history that can be configured has a third of that."""
MOST_VALUES_OF_SERVERS = 200_000
"""JSON values in one message of an MCP server. The MCP SDK makes up to 2 KB of each value."""
_MOST_RARE = 1000
_STRING = re.compile(rb'"[^"\r\n]*"?')  # no string of JSON has a line break, and a new line of events begins outside
_END_OF_EVENT = re.compile(rb"(?>\r\n|\r|\n){2,}")
TOO_MANY_VALUES = f"The request body holds more than {MOST_VALUES} JSON values; send fewer and longer ones."


def has_too_many_values(body: bytes, most: int = MOST_VALUES) -> bool:
    """Return whether a JSON text may hold more than `most` values.

    Exact where it matters: what stands inside of strings counts only in texts that are not UTF-8.
    """
    if len(body) <= most or _structural(body) <= most:
        return False
    if b"\0" in body:  # UTF-16 or UTF-32, which json.loads takes; its strings cannot be told from the rest here
        return True
    unescaped = _unescaped(body)
    return unescaped.count(b'"') > 2 * most or _structural(b"".join(unescaped.split(b'"')[::2])) > most


class ValueCounter:
    """An upper bound of the values in UTF-8 text that comes in pieces: of one document, or of each of many events."""

    def __init__(self, most: int, *, is_events: bool) -> None:
        self._most = most
        self._is_events = is_events
        self._count = 0
        self._held = b""
        self._is_inside, self._is_line_empty = False, True

    def exceeds(self, piece: bytes) -> bool:
        """Take the next piece; return whether the document or an event may hold more than `most` values until now."""
        text, self._held = self._held + piece, b""
        escapes = len(text) - len(text.rstrip(b"\\"))
        if escapes % 2 or text.endswith(b"\r"):  # the next byte decides what it is
            text, self._held = text[:-1], text[-1:]
        text = (b'"' if self._is_inside else b"\n" if self._is_line_empty else b"") + _unescaped(text)
        line = text[max(text.rfind(b"\n"), text.rfind(b"\r")) + 1 :]
        self._is_inside, self._is_line_empty = line.count(b'"') % 2 == 1, not line
        outside = _STRING.sub(b'""', text)
        events = _END_OF_EVENT.split(outside) if self._is_events else [outside]
        before, self._count = self._count, _structural(events[-1]) + (self._count if len(events) == 1 else 0)
        if before + _structural(outside) <= self._most:  # as nearly always
            return False
        return max(self._count, before + _structural(events[0]), *map(_structural, events[1:])) > self._most


def _unescaped(text: bytes) -> bytes:
    return text.replace(rb"\\", b"_").replace(rb"\"", b"_")


def _structural(text: bytes) -> int:
    """Every value but the first follows a comma or the bracket that it is the first of; an object counts as one."""
    return sum(_count(text, one) for one in (b",", b"{", b"["))


def _count(text: bytes, byte: bytes) -> int:
    """`text.count(byte)`, twenty times as fast where the byte is rare, as in an image."""
    count, at = 0, text.find(byte)
    while at >= 0 and count < _MOST_RARE:
        count, at = count + 1, text.find(byte, at + 1)
    return count if at < 0 else count + text.count(byte, at)
