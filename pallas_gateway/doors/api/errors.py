"""Errors of `/api/v1`: `{"error": reason, "error_description": sentence}`, as refusals by `doors/http/access.py`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

from starlette.responses import JSONResponse

from pallas_gateway.errors import RETRY_AFTER_SECONDS, CallLimitedError, CallRefusedError, GatewayError

BY_REASON = {
    "agent_in_use": HTTPStatus.CONFLICT,
    "agent_of_file": HTTPStatus.CONFLICT,
    "agent_unavailable": HTTPStatus.SERVICE_UNAVAILABLE,
    "audit_unavailable": HTTPStatus.SERVICE_UNAVAILABLE,
    "bad_input": HTTPStatus.BAD_REQUEST,
    "bad_image": HTTPStatus.BAD_REQUEST,
    "bad_params": HTTPStatus.BAD_REQUEST,
    "body_too_large": HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    "busy": HTTPStatus.SERVICE_UNAVAILABLE,
    "deadline": HTTPStatus.GATEWAY_TIMEOUT,
    "insufficient_scope": HTTPStatus.FORBIDDEN,
    "internal_error": HTTPStatus.INTERNAL_SERVER_ERROR,
    "invalid_definition": HTTPStatus.UNPROCESSABLE_ENTITY,
    "lease_lost": HTTPStatus.CONFLICT,
    "limited": HTTPStatus.TOO_MANY_REQUESTS,
    "llm_timeout": HTTPStatus.GATEWAY_TIMEOUT,
    "message_too_large": HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    "name_taken": HTTPStatus.CONFLICT,
    "no_answer": HTTPStatus.CONFLICT,
    "no_owner": HTTPStatus.FORBIDDEN,
    "not_acceptable": HTTPStatus.NOT_ACCEPTABLE,
    "not_found": HTTPStatus.NOT_FOUND,
    "not_owner": HTTPStatus.FORBIDDEN,
    "not_json": HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    "precondition_required": HTTPStatus.PRECONDITION_REQUIRED,
    "question_not_open": HTTPStatus.NOT_FOUND,
    "request_timeout": HTTPStatus.REQUEST_TIMEOUT,
    "stopping": HTTPStatus.SERVICE_UNAVAILABLE,
    "stopped": HTTPStatus.SERVICE_UNAVAILABLE,
    "switched_off": HTTPStatus.NOT_FOUND,
    "thread_busy": HTTPStatus.CONFLICT,
    "thread_too_large": HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    "threads_full": HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    "threads_unavailable": HTTPStatus.SERVICE_UNAVAILABLE,
    "turn_not_latest": HTTPStatus.CONFLICT,
    "version_conflict": HTTPStatus.PRECONDITION_FAILED,
}
_BUSY_THREADS = {"lease_lost", "thread_busy"}


class ApiError(GatewayError):
    """A refused request; its `reason` decides the status."""

    reason = "bad_input"


def response_to(error: GatewayError, *, about: Mapping[str, Any] | None = None) -> JSONResponse:
    """The response for an error, with the keys of `about`, such as the thread of a failed call.

    The status of a reason that is not listed is 422 for a refusal (the client's error), else 502 (the agent's).
    """
    is_refusal = isinstance(error, (ApiError, CallRefusedError))
    default = HTTPStatus.UNPROCESSABLE_ENTITY if is_refusal else HTTPStatus.BAD_GATEWAY
    status = BY_REASON.get(error.reason, default)
    is_for_now = status is HTTPStatus.SERVICE_UNAVAILABLE or error.reason in _BUSY_THREADS
    headers = {"Retry-After": str(RETRY_AFTER_SECONDS)} if is_for_now else {}
    if isinstance(error, CallLimitedError):
        headers = {"Retry-After": str(error.retry_after_seconds)}
    body = {**error_body(error.reason, str(error)), **limit_of(error), **(about or {})}
    return JSONResponse(body, status_code=status, headers=headers)


def limit_of(error: GatewayError) -> dict[str, Any]:
    """Return the key of a call that a rule refuses: the rule, and when to try again."""
    if not isinstance(error, CallLimitedError):
        return {}
    return {"limit": {"rule": error.rule, "retryAfterSeconds": error.retry_after_seconds}}


def error_body(reason: str, sentence: str) -> dict[str, str]:
    """The keys of every error of this API."""
    return {"error": reason, "error_description": sentence}


def not_allowed(by_method: Iterable[str]) -> JSONResponse:
    """The response for another method than those of a route; `GET` stands for `HEAD`, too."""
    allowed = ", ".join(name for one in by_method for name in ((one, "HEAD") if one == "GET" else (one,)))
    headers = {"Allow": allowed}
    return JSONResponse(error_body("method_not_allowed", f"Use {allowed}."), status_code=405, headers=headers)
