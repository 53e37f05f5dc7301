"""Templates of requests to an OpenAI API. Imported once an LLM is used."""

from __future__ import annotations

from functools import cache, wraps
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx2
from openai import AsyncOpenAI
from openai._constants import RAW_RESPONSE_HEADER
from openai._streaming import extract_stream_chunk_type
from openai._types import NotGiven
from openai._utils import is_given
from openai._utils._json import openapi_dumps
from pydantic_core import to_json

from pallas_gateway.calls.current import running_call
from pallas_gateway.fast_paths._streamed_bodies import PlainMessages, StreamedBody, encoded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from openai._models import FinalRequestOptions

KEPT_TEMPLATES = 16
"""Of one client, which has one for each address, key and attempt."""
_TEMPLATES = "_pallas_templates"
"""The attribute of a client that has its templates."""


def changed(build: Callable[..., Any], _: Any) -> Callable[..., Any]:
    """Build plain requests from templates."""

    @wraps(build)
    def build_request(self: Any, options: FinalRequestOptions, *, retries_taken: int = 0) -> Any:
        if not (_is_of_fast_agent(self) and _is_plain_post(options)) or self._idempotency_header is not None:
            return build(self, options, retries_taken=retries_taken)
        templates: dict[tuple[Any, ...], _Template] = vars(self).setdefault(_TEMPLATES, {})
        key = (options.url, *sorted(options.security.items()), self.api_key, retries_taken)
        if (template := templates.get(key)) is None:
            without_body = options.model_copy(update={"json_data": {}})
            template = _Template.of(build(self, without_body, retries_taken=retries_taken))
            if len(templates) >= KEPT_TEMPLATES:
                templates.clear()  # keys change, and old ones do not come back
            templates[key] = template
        body: Any = options.json_data
        is_plain = type(body.get("messages")) is PlainMessages
        return template.request(encoded(body, to_json if is_plain else openapi_dumps))

    return build_request


def streaming(original: Callable[..., Any], _: Any) -> Callable[..., Any]:
    """Return the stream of a streamed response at once."""
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
    NotGiven.__deepcopy__ = lambda value, _: value  # type: ignore[attr-defined]


def _is_of_fast_agent(client: Any) -> bool:
    """True for a client that an LLM turn uses. Those of agents' own code may send other headers with each request."""
    return type(client) is AsyncOpenAI and running_call.get().turn is not None


def _is_plain_post(options: FinalRequestOptions) -> bool:
    """True if only the body of the request differs from others of its client."""
    given = options.model_fields_set
    return (
        options.method == "post"
        and type(options.json_data) is dict
        and not (options.headers or options.params or options.files)
        and options.extra_json is None
        and options.content is None
        and ("timeout" not in given or isinstance(options.timeout, NotGiven))
    )


class _Template(NamedTuple):
    """All of a request but its body and the body's length."""

    url: httpx2.URL
    headers: httpx2.Headers
    extensions: Mapping[str, Any]

    @classmethod
    def of(cls, request: httpx2.Request) -> _Template:
        headers = request.headers.copy()
        del headers["content-length"]
        return cls(request.url, headers, dict(request.extensions))  # which `request` may change

    def request(self, body: bytes | StreamedBody) -> httpx2.Request:
        headers = self.headers.copy()
        headers["Content-Length"] = str(len(body))
        stream = body if isinstance(body, StreamedBody) else httpx2.ByteStream(body)
        # With `content`, httpx2 would look through the headers five times.
        request = httpx2.Request("POST", self.url, headers=headers, stream=stream, extensions=dict(self.extensions))
        if stream is not body:
            request.read()
        return request
