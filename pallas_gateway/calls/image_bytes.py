"""Which image a file is, or whether it is a PDF, by its first bytes. Pure.

Sources: the formats' own specifications, as collected in the MIME Sniffing Standard (https://mimesniff.spec.whatwg.org/).
"""

from __future__ import annotations

import re
import string
from typing import TYPE_CHECKING

from pydantic import ConfigDict, TypeAdapter, ValidationError

if TYPE_CHECKING:
    from pallas_gateway.tasks import Parts

_MARKS = {
    "image/png": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "image/jpeg": re.compile(rb"\xff\xd8\xff"),
    "image/gif": re.compile(rb"GIF8[79]a"),
    "image/webp": re.compile(rb"RIFF.{4}WEBP", re.DOTALL),
    "image/heic": re.compile(rb".{4}ftyp(?:he[iv][cxms]|mif1)", re.DOTALL),
    "image/tiff": re.compile(rb"II\*\0|MM\0\*"),
    "image/bmp": re.compile(rb"BM.{4}\0{4}", re.DOTALL),
    "application/pdf": re.compile(rb"%PDF-"),
}
"""With what files of the types begin that models take; others are refused by their type."""
_REST = r"([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
BASE64_PATTERNS = {
    "image/png": rf"^iVBORw0KGg(o=|[o-r][A-Za-z0-9+/]{_REST.removesuffix('$')})$",
    "image/jpeg": rf"^/9j/{_REST}",
    "image/gif": rf"^R0lGOD[dl]h{_REST}",
    "image/webp": rf"^UklGR[g-v][A-Za-z0-9+/]{{4}}[159BFJNRVZdhlptx]XRUJQ{_REST}",
    "application/pdf": rf"^JVBERi(0=|[0-3][A-Za-z0-9+/]{_REST.removesuffix('$')})$",
}
"""The marks in base64, as regular expressions of JSON Schema, for the types that models take."""
LONGEST_MARK_IN_BASE64 = 16
"""Characters with which every mark can be read."""
_ALPHABET = string.ascii_letters.encode() + string.digits.encode() + b"+/"
_NOT_WITHIN = "=-_"
"""Padding and the alphabet of URLs, which the decoder takes too."""
_PART = 64 * 1024
"""Characters that are checked at once: larger copies cost twice the time."""
_decoder = TypeAdapter(bytes, config=ConfigDict(val_json_bytes="base64"))


def is_base64(text: str) -> bool:
    """True if `text` can be decoded, and all of it; found out in a third of the time that `binascii` takes."""
    from pallas_gateway.tasks import at_once  # noqa: PLC0415  `--help` loads this module, and checks nothing

    return at_once(checked_base64(text))


def checked_base64(text: str) -> Parts[bool]:
    """`is_base64`, which yields between parts of the text."""
    end = max(0, len(text) - 4)
    if len(text) % 4 or not text.isascii() or not _ends_base64(text[end:]):
        return False
    for at in range(0, end, _PART):
        if not _is_full(text[at : min(at + _PART, end)]):
            return False
        yield
    return True


def _is_full(text: str) -> bool:
    """True for base64 without padding."""
    if any(one in text for one in _NOT_WITHIN):
        return False
    try:
        _decoder.validate_strings(text)
    except ValidationError:
        return False
    return True


def _ends_base64(last: str) -> bool:
    """True for the last four characters of base64, whose unused bits need not be 0."""
    rest = last.encode().translate(None, _ALPHABET).decode()
    return rest in ("", "=", "==") and last.endswith(rest)


def image_type_of(data: bytes) -> str | None:
    """The type of an image or PDF by its first bytes, None if it is none of those that models take."""
    return next((kind for kind, mark in _MARKS.items() if mark.match(data)), None)


def why_not(mime_type: str, data: bytes) -> str | None:
    """Return the reason for which data are no image of a type, to follow "the image"; None if they may be one."""
    found = image_type_of(data)
    if found is not None:
        return None if found == mime_type else f"is of type {found}, not {mime_type:.40}"
    return f"is no {mime_type} file, by its first bytes" if mime_type in _MARKS else None
