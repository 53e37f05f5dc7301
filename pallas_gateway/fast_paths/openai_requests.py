"""Requests to an OpenAI API, built from a template of their client.

Only the body of a request differs from those before it. Large images in it are sent piece by piece.
"""

from __future__ import annotations

from pallas_gateway.changes.change import FAST_PATH, Change, Loaded, Name

_OPTIONS = "openai._models:FinalRequestOptions"
_PROCESSED = ("self", "cast_to", "options", "response", "stream", "stream_cls")
CHANGE = Change(
    "openai_requests",
    FAST_PATH,
    ("openai",),
    when=Loaded("openai"),
    replaces=(
        Name("openai:AsyncOpenAI._build_request", ("self", "options", "retries_taken")),
        Name("openai:AsyncOpenAI._process_response", _PROCESSED, by="streaming"),
        Name("openai._base_client:BaseClient._idempotency_key", ("self",), by="naming"),
    ),
    relies_on=(
        Name("openai:AsyncOpenAI._idempotency_header"),
        Name(_OPTIONS, ("method", "url", "headers", "params", "files", "content", "security", "timeout")),
        Name(_OPTIONS, ("json_data", "extra_json")),
    ),
    made_in="pallas_gateway.fast_paths._request_templates",
)
