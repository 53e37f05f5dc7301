"""Requests to an OpenAI API, built from a template of their client.

The OpenAI library builds address and headers of each request from the settings of the client. Only the body differs.
Large images in it are sent piece by piece.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pallas_gateway.changes.change import FAST_PATH, Change, Loaded, Name

if TYPE_CHECKING:
    from collections.abc import Callable

_OPTIONS = "openai._models:FinalRequestOptions"
CHANGE = Change(
    "openai_requests",
    FAST_PATH,
    ("openai",),
    when=Loaded("openai"),
    replaces=(Name("openai:AsyncOpenAI._build_request", ("self", "options", "retries_taken")),),
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


def install() -> None:
    """Leave out the copies of "not given", which pydantic makes for each request."""
    from openai._types import NotGiven  # noqa: PLC0415  as above

    NotGiven.__deepcopy__ = lambda value, _: value  # type: ignore[attr-defined]
