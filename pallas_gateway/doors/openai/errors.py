"""Errors in OpenAI's form: `{"error": {message, type, param, code}}` with an HTTP status.

`code` is the gateway's reason, except for those that clients look for (`invalid_api_key`, `model_not_found`,
`rate_limit_exceeded`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from starlette.responses import JSONResponse, Response

from pallas_gateway.errors import RETRY_AFTER_SECONDS, CallLimitedError, CallRefusedError, GatewayError
from pallas_gateway.telemetry.redaction import quoted

RETRY_AFTER = {"Retry-After": str(RETRY_AFTER_SECONDS)}
_NOT_AGAIN = {"x-should-retry": "false"}
"""Stops the automatic retries of OpenAI's clients: the failed call may have run tools that must not run twice."""
_NOT_STARTED = {
    "busy": (HTTPStatus.TOO_MANY_REQUESTS, RETRY_AFTER),
    "agent_unavailable": (HTTPStatus.SERVICE_UNAVAILABLE, RETRY_AFTER),
    "audit_unavailable": (HTTPStatus.SERVICE_UNAVAILABLE, RETRY_AFTER),
    "insufficient_scope": (HTTPStatus.FORBIDDEN, {}),
}
_FAILED = {
    "llm_error": HTTPStatus.BAD_GATEWAY,
    "cancelled": HTTPStatus.BAD_GATEWAY,
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
    """An invalid request; `param` is the place, such as `messages[2].content`."""

    reason = "bad_input"

    def __init__(self, message: str, *, param: str | None = None, reason: str | None = None) -> None:
        super().__init__(message, reason=reason)
        self.param = param


@dataclass(eq=False)
class OpenAiError(Exception):
    """One error with its status."""

    status: HTTPStatus
    message: str
    code: str | None = None
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        """Return the error object, which is an event if a stream has begun."""
        default = "server_error" if self.status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
        kind = _TYPES.get(self.status, default)
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), status_code=self.status, headers=dict(self.headers))


def of_refusal(refusal: GatewayError) -> OpenAiError:
    """Return the error of a call that was not started."""
    if isinstance(refusal, CallLimitedError):
        return _of_limit(refusal)
    status, headers = _NOT_STARTED.get(refusal.reason, (HTTPStatus.BAD_REQUEST, {}))
    return OpenAiError(status, str(refusal), refusal.reason, getattr(refusal, "param", None), headers)


def _of_limit(refusal: CallLimitedError) -> OpenAiError:
    """Return the error of a call that a rule refuses, with the headers by which OpenAI's clients wait.

    Format: https://platform.openai.com/docs/guides/rate-limits, "Rate limits in headers".
    """
    headers = {
        "Retry-After": str(refusal.retry_after_seconds),
        f"x-ratelimit-limit-{refusal.unit}": str(refusal.limit),
        f"x-ratelimit-remaining-{refusal.unit}": "0",
        f"x-ratelimit-reset-{refusal.unit}": f"{refusal.retry_after_seconds}s",
    }
    return OpenAiError(HTTPStatus.TOO_MANY_REQUESTS, str(refusal), "rate_limit_exceeded", headers=headers)


def of_failure(reason: str, message: str) -> OpenAiError:
    """Return the error of a call that was started; clients do not repeat it."""
    return OpenAiError(_FAILED.get(reason, HTTPStatus.INTERNAL_SERVER_ERROR), message, reason, headers=_NOT_AGAIN)


def no_such_model(model: str) -> OpenAiError:
    """Return the error for an agent that does not exist or that the caller may not run."""
    message = f"The model {quoted(model)} does not exist, or you may not use it. GET /v1/models lists those you may."
    return OpenAiError(HTTPStatus.NOT_FOUND, message, "model_not_found", "model")


def too_large(message: str) -> OpenAiError:
    """Return the error for a body that exceeds a limit."""
    return OpenAiError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message, "too_large")


def in_openai_form(refusal: Response) -> Response:
    """Return a refusal of the gateway's guards in the form of this API; status, headers and text stay.

    Guards send `{"error": …}`, `doors/http/access.py` a description as well. Other responses stay as they are.
    """
    if refusal.status_code < HTTPStatus.BAD_REQUEST:
        return refusal
    body = json.loads(bytes(refusal.body))
    if isinstance(error := body["error"], dict):
        return refusal
    sentence = body.get("error_description")
    code = _CODES.get(error, error) if sentence else None
    headers = {name: value for name, value in refusal.headers.items() if not name.startswith("content-")}
    return OpenAiError(HTTPStatus(refusal.status_code), sentence or error, code, headers=headers).response()
