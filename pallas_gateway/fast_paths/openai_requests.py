"""Requests to an OpenAI API, built from a template of their client.

Only the body of a request differs from those before it. Large images in it are sent piece by piece.
"""

from __future__ import annotations

from functools import cache, wraps
from typing import TYPE_CHECKING, Any

from pallas_gateway.changes.change import FAST_PATH, Change, Loaded, Name

if TYPE_CHECKING:
    from collections.abc import Callable

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
)


def changed(original: Callable[..., Any], _: Any) -> Callable[..., Any]:
    """Build plain requests from templates."""
    from pallas_gateway.fast_paths._request_templates import building  # noqa: PLC0415  not before an LLM is used

    return building(original)


def streaming(original: Callable[..., Any], _: Any) -> Callable[..., Any]:
    """Return the stream of a streamed response at once."""
    from openai._constants import RAW_RESPONSE_HEADER  # noqa: PLC0415  as above
    from openai._streaming import extract_stream_chunk_type  # noqa: PLC0415  as above
    from openai._utils import is_given  # noqa: PLC0415  as above

    chunk_of = cache(extract_stream_chunk_type)

    @wraps(original)
    async def process_response(self: Any, *, response: Any, stream: bool, stream_cls: Any, **given: Any) -> Any:
        is_raw = RAW_RESPONSE_HEADER in response.request.headers
        if not stream or stream_cls is None or is_raw or is_given(given["options"].post_parser):
            return await original(self, response=response, stream=stream, stream_cls=stream_cls, **given)
        return stream_cls(cast_to=chunk_of(stream_cls), response=response, client=self, options=given["options"])

    return process_response


def naming(original: Callable[[Any], str], _: Any) -> Callable[[Any], str]:
    """Make the key of a request only if a header sends it."""

    @wraps(original)
    def idempotency_key(self: Any) -> str:
        return "" if self._idempotency_header is None else original(self)

    return idempotency_key


def install() -> None:
    """Leave out the copies of "not given", which pydantic makes for each request."""
    from openai._types import NotGiven  # noqa: PLC0415  as above

    NotGiven.__deepcopy__ = lambda value, _: value  # type: ignore[attr-defined]
