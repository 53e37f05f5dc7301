"""Errors as OpenAI's clients know them: `{"error": {message, type, param, code}}` with a telling status.

`code` is the gateway's own reason, but for the two that clients look for (`invalid_api_key`, `model_not_found`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from starlette.datastructures import MutableHeaders
from starlette.responses import JSONResponse

from pallas_gateway.errors import RETRY_AFTER_SECONDS, CallRefusedError
from pallas_gateway.telemetry.redaction import quoted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from pallas_gateway.errors import GatewayError

_LATER = {"Retry-After": str(RETRY_AFTER_SECONDS)}
_NOT_AGAIN = {"x-should-retry": "false"}
"""OpenAI's clients send failed requests again by themselves; an agent may have done things that should be done once."""
_NOT_STARTED = {
    "busy": (HTTPStatus.TOO_MANY_REQUESTS, _LATER),
    "agent_unavailable": (HTTPStatus.SERVICE_UNAVAILABLE, _LATER),
    "insufficient_scope": (HTTPStatus.FORBIDDEN, {}),
}
_FAILED = {
    "llm_error": HTTPStatus.BAD_GATEWAY,
    "llm_timeout": HTTPStatus.GATEWAY_TIMEOUT,
    "deadline": HTTPStatus.GATEWAY_TIMEOUT,
    "stopped": HTTPStatus.SERVICE_UNAVAILABLE,
}
_TYPES = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
}
_CODES = {"unauthorized": "invalid_api_key", "invalid_token": "invalid_api_key"}


class BadRequestError(CallRefusedError):
    """What a client sent is not a request that can be answered; `param` says where, `messages[2].content`."""

    reason = "bad_input"

    def __init__(self, message: str, *, param: str | None = None, reason: str | None = None) -> None:
        super().__init__(message, reason=reason)
        self.param = param


@dataclass(frozen=True, slots=True)
class ApiError:
    """One error with its status."""

    status: HTTPStatus
    message: str
    code: str | None = None
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        """The error object, which also stands in a stream that has begun."""
        is_ours = self.status >= HTTPStatus.INTERNAL_SERVER_ERROR
        kind = _TYPES.get(self.status, "server_error" if is_ours else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        """The whole answer."""
        return JSONResponse(self.body(), status_code=self.status, headers=dict(self.headers))


def of_refusal(refusal: GatewayError) -> ApiError:
    """The error of a call that was not started."""
    status, headers = _NOT_STARTED.get(refusal.reason, (HTTPStatus.BAD_REQUEST, {}))
    return ApiError(status, str(refusal), refusal.reason, getattr(refusal, "param", None), headers)


def of_failure(reason: str, message: str) -> ApiError:
    """The error of a call that was started: it is not to be sent again without a thought."""
    return ApiError(_FAILED.get(reason, HTTPStatus.INTERNAL_SERVER_ERROR), message, reason, headers=_NOT_AGAIN)


def no_such_model(model: str) -> ApiError:
    """The error for an agent that is not there, or not for this caller."""
    message = f"The model {quoted(model)} does not exist, or you may not use it. GET /v1/models lists those you may."
    return ApiError(HTTPStatus.NOT_FOUND, message, "model_not_found", "model")


def too_large(message: str) -> ApiError:
    """The error for a body that is too large to be read."""
    return ApiError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message, "too_large")


def not_json() -> ApiError:
    """The error for a body of another content type."""
    message = "Send the body as application/json (Content-Type)."
    return ApiError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, message, "not_json")


def draining() -> ApiError:
    """The error for calls that come while the gateway stops."""
    message = "The gateway is stopping; try again in a moment."
    return ApiError(HTTPStatus.SERVICE_UNAVAILABLE, message, "stopping", headers=_LATER)


class InOpenAiForm:
    """Gives the refusals of the gateway's guards the form of this API; their status, headers and words stay."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on one request."""
        start: Message | None = None
        body = b""

        async def translate(message: Message) -> None:
            nonlocal start, body
            if message["type"] == "http.response.start" and message["status"] >= HTTPStatus.BAD_REQUEST:
                start = message
            elif start is None:
                await send(message)
            else:
                body += message.get("body", b"")
                if not message.get("more_body", False):
                    await _send_error(start, body, send)

        await self._app(scope, receive, translate)


async def _send_error(start: Message, body: bytes, send: Send) -> None:
    translated = _translated(HTTPStatus(start["status"]), body)
    MutableHeaders(scope=start)["content-length"] = str(len(translated))
    await send(start)
    await send({"type": "http.response.body", "body": translated})


def _translated(status: HTTPStatus, body: bytes) -> bytes:
    """`body` in this API's form; the guards say `{"error": …}`, those of OAuth a sentence beside it."""
    said = json.loads(body)
    error = said["error"]
    if isinstance(error, dict):
        return body
    sentence = said.get("error_description")
    code = _CODES.get(error, error) if sentence else None
    return json.dumps(ApiError(status, sentence or error, code).body()).encode()
