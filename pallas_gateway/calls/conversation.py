"""From the tool's arguments to messages: strict for the current turn, forgiving for history.

A broken row of history is skipped with a reason (one bad row never loses a conversation); a broken image of the
current turn refuses the call, because the answer would be about something the user did not send. Pure functions; what
may take long is a generator, for `tasks.in_parts` or `tasks.at_once`.
"""

from __future__ import annotations

import base64
import json
import logging
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeGuard

from pallas_gateway.calls.call import PDF, Image, Message
from pallas_gateway.calls.image_bytes import LONGEST_MARK_IN_BASE64, checked_base64, why_not
from pallas_gateway.errors import CallRefusedError
from pallas_gateway.json_size import has_too_many_values
from pallas_gateway.telemetry.redaction import quoted

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from pallas_gateway.calls.call import Call, Role
    from pallas_gateway.tasks import Parts

_ROLES = ("user", "assistant")
_NAME = re.compile(r"[^\x00-\x1f\x7f]{0,200}")
"""The name of a PDF's file: at most 200 characters, none of them a control character."""
_AT_ONCE = 50
"""Rows of a history between two pauses."""
MOST_SKIPPED_SHOWN = 25
"""Skipped rows of one history that are kept with their reasons; the others are counted."""
LONGEST_ID = 1000
"""Characters of a conversation id, which every log record and notification of its call has."""
_log = logging.getLogger("pallas.agent_server")


@dataclass(frozen=True, slots=True)
class SkippedRow:
    """One history entry (or one image of it) that was left out: `index` counts from 0, `why` completes "skipped: …"."""

    index: int
    why: str


@dataclass(frozen=True, slots=True)
class Skipped:
    """The history entries that were left out: the first of them, and the number of all."""

    first: tuple[SkippedRow, ...] = ()
    count: int = 0

    def warn(self, call: Call) -> None:
        """Log the number, and the first entries with their reasons, if there are any."""
        if self.count:
            ids = {"agent": call.agent, "call_id": call.call_id, "conversation_id": call.conversation_id}
            first = [{"index": row.index, "why": row.why} for row in self.first]
            # `first` has `index` and `why` of the first 25.
            _log.warning("history entries skipped", extra={**ids, "entries": self.count, "first": first})


NOTHING_SKIPPED = Skipped()


class MalformedError(ValueError):
    """A row or an image is malformed; the message has the reason."""


def conversation_id_of(arguments: Mapping[str, Any]) -> str | None:
    """Return the conversation id, None if missing or invalid. Read first, so that refusals carry it."""
    found = arguments.get("conversation_id")
    return found if is_conversation_id(found) else None


def is_conversation_id(value: object) -> TypeGuard[str]:
    """Return true for text of at most `LONGEST_ID` characters."""
    return isinstance(value, str) and len(value) <= LONGEST_ID and is_text(value)


def current_message(text: str, images: object) -> Parts[Message]:
    """Return the new user turn.

    Raises:
        CallRefusedError: `bad_image`, naming the first image that is malformed and why.
    """
    if images is None:
        return Message("user", text)
    try:
        return Message("user", text, (yield from checked_images(images)))
    except MalformedError as error:
        raise CallRefusedError(f"{error}. Send images as {{data: base64, mime_type}}.", reason="bad_image") from error


def refuse_too_many(rows: Sequence[object], images: object, most: int) -> None:
    """Refuse a call with more than `most` entries of history or images, before any of them is looked at.

    Raises:
        CallRefusedError: `bad_input`; says how many there are and how many may be.
    """
    refuse_more_than(most, len(rows), "entries of history")
    pictures = [_length(row["images"]) for row in rows if isinstance(row, dict) and "images" in row]
    refuse_more_than(most, sum(pictures) + _length(images), "images")


def refuse_more_than(most: int, count: int, what: str) -> None:
    """Raise the `CallRefusedError` of a call with more entries or images than `gateway.max_history_entries`."""
    if count > most:
        why = f"The call has {count} {what}; this gateway takes at most {most} (gateway.max_history_entries)."
        raise CallRefusedError(f"{why} Send the latest ones only.", reason="bad_input")


def history_rows(history: object) -> list[Any]:
    """Return the entries of a history, also of one as JSON text, as some clients write lists.

    Raises:
        CallRefusedError: `bad_input`; it is no list.
    """
    given = history
    if isinstance(history, str) and not has_too_many_values(history.encode(errors="surrogatepass")):
        with suppress(ValueError, RecursionError):
            history = json.loads(history)
    if history is not None and not isinstance(history, list):
        why = f"A history must be a list of {{role, content}}, got {_kind(given)}."
        raise CallRefusedError(f"{why} Send the earlier turns, oldest first.", reason="bad_input")
    return history or []


def parse_history(rows: Sequence[object]) -> Parts[tuple[tuple[Message, ...], Skipped]]:
    """Return the well-formed turns of a history in order, and the skipped entries with their reasons."""
    messages: list[Message] = []
    first: list[SkippedRow] = []
    for index, row in enumerate(rows):
        try:
            role, content, images = _row(row)
            messages.append(Message(role, content, (yield from checked_images(images)) if images is not None else ()))
        except MalformedError as error:
            if len(first) < MOST_SKIPPED_SHOWN:
                first.append(SkippedRow(index, str(error)))
        if index % _AT_ONCE == 0:
            yield
    return tuple(messages), Skipped(tuple(first), len(rows) - len(messages))


def attachment_kind(image: Image) -> str:
    """Return `document` for a PDF, else `image`."""
    return "document" if image.mime_type == PDF else "image"


def first_foreign_image(message: Message, types: Collection[str]) -> tuple[int, Image] | None:
    """The first image whose type is not one of `types`, with its number from 1."""
    numbered = enumerate(message.images, start=1)
    foreign = ((number, image) for number, image in numbered if image.mime_type not in types)
    return next(foreign, None)


def without_foreign_images(messages: Iterable[Message], types: Collection[str]) -> tuple[tuple[Message, ...], int]:
    """The messages without images of other than these types, and how many images were dropped.

    A turn that held nothing but images keeps its place with a note, so that the roles still alternate.
    """
    dropped = 0
    bare: list[Message] = []
    for message in messages:
        if not message.images:
            bare.append(message)
            continue
        kept = tuple(image for image in message.images if image.mime_type in types)
        dropped += len(message.images) - len(kept)
        text = message.text or ("" if kept else f"[{attachment_kind(message.images[0])} left out]")
        bare.append(message if kept == message.images else replace(message, text=text, images=kept))
    return tuple(bare), dropped


def checked_images(images: object) -> Parts[tuple[Image, ...]]:
    """Return the images and PDFs of one turn, each `{data: base64, mime_type, name?}`.

    Raises:
        MalformedError: names the first that is malformed, and why.
    """
    if not isinstance(images, list):
        raise MalformedError(f"images must be a list, got {_kind(images)}")
    checked: list[Image] = []
    for number, image in enumerate(images, start=1):
        checked.append((yield from _image(number, image)))
    return tuple(checked)


def is_text(value: str) -> bool:
    """Return True if a string is Unicode text; half a surrogate pair (a part of an emoji) is not."""
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _row(row: object) -> tuple[Role, str, object]:
    """Return role, text and unchecked images."""
    if not isinstance(row, dict):
        raise MalformedError(f"entry must be an object, got {_kind(row)}")
    role = row.get("role")
    if role not in _ROLES:
        raise MalformedError(f"role must be 'user' or 'assistant', got {quoted(role)}")
    content = _content(row.get("content"))
    if not is_text(content):
        raise MalformedError("content holds half a surrogate pair")
    return role, content, row.get("images")


def _content(content: object) -> str:
    """Return the text of a row: a string, or a list of text parts as in OpenAI's API."""
    if content is None:
        raise MalformedError("content is missing")
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise MalformedError(f"content must be a string, got {_kind(content)}")
    texts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
    if len(texts) < len(content) or not all(isinstance(text, str) for text in texts):
        raise MalformedError("content holds a part that is no text; send images as `images`")
    return "\n".join(map(str, texts))


def _image(number: int, image: object) -> Parts[Image]:
    if not isinstance(image, dict):
        raise MalformedError(f"image {number} must be an object, got {_kind(image)}")
    data, mime_type = _text(image, "data", number), _canonical(_text(image, "mime_type", number))
    if not mime_type.startswith("image/") and mime_type != PDF:
        given = f"image {number} has mime_type {quoted(mime_type)}"
        raise MalformedError(f"{given}, which is not an image type, and not {PDF}")
    if not (yield from checked_base64(data)):
        raise MalformedError(f"image {number} is not valid base64")
    if (why := why_not(mime_type, base64.b64decode(data[:LONGEST_MARK_IN_BASE64]))) is not None:
        raise MalformedError(f"image {number} {why}")
    return Image(data, mime_type, _name(number, image) if mime_type == PDF else "")


def _name(number: int, image: Mapping[str, Any]) -> str:
    name = image.get("name", "")
    if not isinstance(name, str) or not is_text(name) or not _NAME.fullmatch(name):
        raise MalformedError(f"image {number} has a name that is no text of at most 200 characters on one line")
    return name


_OTHER_NAMES = {
    "image/jpg": "image/jpeg",
    "image/pjpeg": "image/jpeg",
    "image/x-png": "image/png",
    "image/x-ms-bmp": "image/bmp",
    "image/heif": "image/heic",
    "application/x-pdf": PDF,
}


def _canonical(mime_type: str) -> str:
    """`image/JPG; q=1` → `image/jpeg`."""
    bare = mime_type.partition(";")[0].strip().lower()
    return _OTHER_NAMES.get(bare, bare)


def _text(image: Mapping[str, Any], key: str, number: int) -> str:
    value = image.get(key)
    if not isinstance(value, str) or not value or not is_text(value):
        raise MalformedError(f"image {number} has no {key}")
    return value


def _length(value: object) -> int:
    return len(value) if isinstance(value, list) else 0


def _kind(value: object) -> str:
    return "null" if value is None else type(value).__name__
