"""Requests to an OpenAI API, built from a template of their client. Imported once an LLM is used.

The OpenAI library builds address and headers of each request from the settings of the client. Only the body differs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import httpx2
from openai import AsyncOpenAI, _models
from openai._models import FinalRequestOptions
from openai._types import NotGiven
from openai._utils._json import openapi_dumps
from pydantic_core import to_json

from pallas_gateway.runtime.fast_paths.openai_messages import PlainMessages
from pallas_gateway.runtime.fast_paths.streamed_bodies import StreamedBody, encoded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pallas_gateway.runtime.compat.requirements import ReliedOn

KEPT_TEMPLATES = 16
"""Of one client, which has one for each address, key and attempt."""
RELIED_ON: ReliedOn = (
    (AsyncOpenAI, "_build_request", ("self", "options", "retries_taken")),
    (AsyncOpenAI, "_idempotency_header", ()),
    (_models, "FinalRequestOptions", ("method", "url", "headers", "params", "files", "content", "security", "timeout")),
    (_models, "FinalRequestOptions", ("json_data", "extra_json")),
)


def accelerate(client_class: type[Any]) -> type[Any]:
    """A client class of the OpenAI library that builds requests from templates."""
    NotGiven.__deepcopy__ = _itself  # type: ignore[attr-defined]  # pydantic copies the defaults of each request
    return type(client_class.__name__, (_Templates, client_class), {})  # which the library sends as its User-Agent


class _Templates:
    """Goes before the class of a client."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._templates: dict[tuple[Any, ...], _Template] = {}

    def _build_request(self: Any, options: FinalRequestOptions, *, retries_taken: int = 0) -> Any:
        build = super()._build_request  # type: ignore[misc]
        if not _is_plain_post(options) or self._idempotency_header is not None:
            return build(options, retries_taken=retries_taken)
        key = (options.url, *sorted(options.security.items()), self.api_key, retries_taken)
        if (template := self._templates.get(key)) is None:
            without_body = options.model_copy(update={"json_data": {}})
            template = _Template.of(build(without_body, retries_taken=retries_taken))
            if len(self._templates) >= KEPT_TEMPLATES:
                self._templates.clear()  # keys change, and old ones do not come back
            self._templates[key] = template
        body: Any = options.json_data
        is_plain = type(body.get("messages")) is PlainMessages
        return template.request(encoded(body, to_json if is_plain else openapi_dumps))


def _itself[T](value: T, _: object) -> T:
    return value


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
        content: Any = {"content": body}
        headers = self.headers
        if isinstance(body, StreamedBody):
            content = {"stream": body}
            headers = headers.copy()
            headers["content-length"] = str(len(body))
        return httpx2.Request("POST", self.url, headers=headers, **content, extensions=dict(self.extensions))
