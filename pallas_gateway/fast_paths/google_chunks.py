"""Chunks of text in a streamed answer of Gemini, made with less work.

Google's library copies each chunk field by field, looks for unknown fields, and checks types in Python: 130 µs for a
word. A chunk that holds one text, names and counts is made here, from copies of empty objects.
"""

from __future__ import annotations

from pallas_gateway.changes.change import FAST_PATH, Change, Loaded, Name

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
    made_in="pallas_gateway.fast_paths._google_chunks",
)
