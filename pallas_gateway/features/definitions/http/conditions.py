"""Conditional requests (RFC 9110, section 13): `If-Match` of changes. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pallas_gateway.doors.api.errors import ApiError

_TAG = re.compile(r'(?:W/)?"[\x21\x23-\x7e\x80-\xff]*"')
_IN_PLACE_OF_A_TAG = "\0"  # no header has it


@dataclass(frozen=True, slots=True)
class Tags:
    """The entity tags of a condition; `is_any` stands for `*`."""

    tags: frozenset[str] = frozenset()
    is_any: bool = False

    def match_strongly(self, etag: str) -> bool:
        """Return true if the condition `If-Match` is met by a resource with this tag; weak tags never match."""
        return self.is_any or (etag in self.tags and not etag.startswith("W/"))


def required(lines: list[str]) -> Tags:
    """Return the condition of a change, from the lines of its `If-Match`.

    Raises:
        ApiError: `precondition_required` without the header; `bad_input` if it is malformed.
    """
    if not lines:
        message = "Send If-Match with the ETag of the agent as you have read it, or * to change any version."
        raise ApiError(message, reason="precondition_required")
    if (tags := _parsed(lines)) is None:
        raise ApiError('If-Match must be * or ETags in double quotes, such as "3".')
    return tags


def _parsed(lines: list[str]) -> Tags | None:
    """Return the tags of a condition; None if it is malformed or missing."""
    value = ",".join(lines)
    if value.strip() == "*":
        return Tags(is_any=True)
    elements = {one.strip(" \t") for one in _TAG.sub(_IN_PLACE_OF_A_TAG, value).split(",")}
    if _IN_PLACE_OF_A_TAG not in elements or elements - {"", _IN_PLACE_OF_A_TAG}:  # empty elements have no meaning
        return None
    return Tags(frozenset(_TAG.findall(value)))
