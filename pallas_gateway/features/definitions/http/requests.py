"""The parts of a change that are not in the definition, which `pallas_gateway.features.definitions` reads.

`If-Match` is as in RFC 9110, section 13.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from pallas_gateway.doors.api.errors import ApiError
from pallas_gateway.features.definitions.records import InvalidDefinitionError, Place, StoredAgent
from pallas_gateway.features.definitions.service import Owner
from pallas_gateway.identity.caller import ANONYMOUS_NAME, Caller, owner_of_token
from pallas_gateway.telemetry.redaction import quoted

LARGEST_BODY = 2 * 1024 * 1024
"""Bytes of a body; a definition has at most 256 KB, and JSON may write each of them as six."""
ONLY_SHOWN = frozenset({
    "state", "reason", "source", "version", "runningVersion", "createdAt", "updatedAt", "paramsSchema",
})  # fmt: skip
"""Keys that only answers have: ignored in a whole definition, so that an answer can be sent back."""
_VERSION = re.compile(r"[1-9][0-9]{0,8}")
_KEY_OWNER = re.compile(r"key:(?P<name>[A-Za-z0-9][A-Za-z0-9_.@-]*)")
_TOKEN_OWNER = re.compile(r"token:\S+ (?:sub|client_id|azp|sha256) (?P<name>.+)")
_LONGEST_PART = 1000


def version(text: str, agent: str) -> int:
    """Return the number of a version in a path.

    Raises:
        ApiError: `not_found`: it cannot be one.
    """
    if not _VERSION.fullmatch(text):
        raise ApiError(f"Agent {quoted(agent)} has no version {quoted(text)}.", reason="not_found")
    return int(text)


def without_shown_only(body: dict[str, Any], defaults: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a whole definition without the keys that only answers have, and without values that are `defaults`."""
    known = (defaults or {}).items()
    return {key: value for key, value in body.items() if key not in ONLY_SHOWN and (key, value) not in known}


def take_name(body: dict[str, Any], name: str) -> None:
    """Remove the name from the body of a change, if it is the agent's; its name cannot be changed."""
    if body.pop("name", name) != name:
        message = "is the name in the path and cannot be changed; copy the agent (copyOf) and delete this one"
        raise InvalidDefinitionError([Place("name", message)])


def take_own(body: dict[str, Any], caller: Caller) -> None:
    """Remove the owner from the body of a new agent, which belongs to its caller."""
    if body.pop("owner", caller.name) not in (caller.name, caller.owner):
        message = "is the caller that makes the agent; hand the agent over when it exists"
        raise InvalidDefinitionError([Place("owner", message)])


def take_owner(body: dict[str, Any], present: StoredAgent) -> Owner | None:
    """Remove the owner from the body of a change, and return it; None if it stays the same.

    Raises:
        InvalidDefinitionError: it names no owner.
    """
    if "owner" not in body or (given := body.pop("owner")) in (present.owner, present.owner_name):
        return None
    owner = _owner(given)
    if owner is None:
        message = 'must be "key:NAME", "anonymous", a caller\'s id, or an object with "issuer" and "subject" of tokens'
        raise InvalidDefinitionError([Place("owner", message)])
    return None if owner.owner == present.owner else owner


def refuse_unknown_key(owner: Owner, keys: Collection[str]) -> None:
    """Refuse to hand an agent over to a key that is not among the names `keys`; the agent would be lost.

    Raises:
        InvalidDefinitionError: there is no such key.
    """
    match = _KEY_OWNER.fullmatch(owner.owner)
    if match and match["name"] not in keys:
        raise InvalidDefinitionError([Place("owner", f"no key {quoted(match['name'])} in gateway.auth.tokens")])


def _owner(given: object) -> Owner | None:
    if isinstance(given, str):
        if given == ANONYMOUS_NAME:
            return Owner(owner=ANONYMOUS_NAME, name=ANONYMOUS_NAME)
        match = _KEY_OWNER.fullmatch(given) or _TOKEN_OWNER.fullmatch(given[:_LONGEST_PART])
        return Owner(owner=given, name=match["name"]) if match else None
    if not isinstance(given, dict) or given.keys() != {"issuer", "subject"}:
        return None
    issuer, subject = given["issuer"], given["subject"]
    if not all(isinstance(one, str) and 0 < len(one) <= _LONGEST_PART and one.isprintable() for one in given.values()):
        return None
    return None if " " in issuer else Owner(owner=owner_of_token(issuer, "sub", subject), name=subject)


_TAG = re.compile(r'(?:W/)?"[\x21\x23-\x7e\x80-\xff]*"')
_IN_PLACE_OF_A_TAG = "\0"  # no header has it


def required_tags(lines: list[str]) -> frozenset[str] | None:
    """Return the tags of a change, one of which must be the agent's, from its `If-Match`; None for `*`.

    Raises:
        ApiError: `precondition_required` without the header; `bad_input` if it is malformed.
    """
    if not lines:
        message = "Send If-Match with the ETag of the agent as you have read it, or * to change any version."
        raise ApiError(message, reason="precondition_required")
    value = ",".join(lines)
    if value.strip() == "*":
        return None
    elements = {one.strip(" \t") for one in _TAG.sub(_IN_PLACE_OF_A_TAG, value).split(",")}
    if _IN_PLACE_OF_A_TAG not in elements or elements - {"", _IN_PLACE_OF_A_TAG}:  # empty elements have no meaning
        raise ApiError('If-Match must be * or ETags in double quotes, such as "3".')
    return frozenset(_TAG.findall(value))
