"""Chunks of text in a streamed answer of Gemini, made with less work.

Google's library copies each chunk field by field, looks for unknown fields, and checks types in Python: 130 µs for a
word. A chunk that holds one text, names and counts is made here, from copies of empty objects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pallas_gateway.changes.change import FAST_PATH, Change, Loaded, Name

if TYPE_CHECKING:
    from collections.abc import Callable

CHANGE = Change(
    "google_chunks",
    FAST_PATH,
    ("google-genai", "pydantic"),
    when=Loaded("google.genai"),
    replaces=(
        Name(
            "google.genai.models:_GenerateContentResponse_from_mldev", ("from_object", "parent_object", "root_object")
        ),
        Name("google.genai.types:GenerateContentResponse._from_response", ("response", "kwargs"), by="taking"),
    ),
    gone_when="`_remove_extra_fields` and `_check_field_type_mismatches` cost less than the parsing",
)


def changed(original: Callable[..., Any], _: Any) -> Callable[..., Any]:
    """Make chunks of text here."""
    from pallas_gateway.fast_paths._google_chunks import converting  # noqa: PLC0415  not before an LLM is used

    return converting(original)


def taking(original: Any, _: Any) -> Any:
    """Take the responses of these chunks."""
    from pallas_gateway.fast_paths._google_chunks import from_made  # noqa: PLC0415  as above

    return classmethod(from_made(original.__func__))
