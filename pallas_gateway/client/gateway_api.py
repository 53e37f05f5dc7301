"""Requests to `/api/v1` of a running gateway."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from pallas_gateway.client.gateway_client import (
    REGISTRY_SECONDS,
    RefusedError,
    UnavailableError,
    UnreachableError,
    authorization,
    not_reached,
    why_refused,
)
from pallas_gateway.client.usage import UsageError
from pallas_gateway.urls import bypass_proxies

if TYPE_CHECKING:
    import httpx


class ApiRefusedError(RefusedError):
    """The gateway refuses a request, with its own sentence."""

    reason = "refused"


async def request(method: str, base_url: str, path: str, bearer: str | None) -> Any:
    """Return the JSON of a response; None for one without a body.

    Raises:
        ApiRefusedError: the gateway refuses the request.
        RefusedError: it requires a token, or another one.
        UnavailableError: it cannot answer now (HTTP 503).
        UnreachableError: nothing answers, or the answer is none of the gateway.
        UsageError: `base_url` is no URL.
    """
    if not base_url.startswith(("http://", "https://")):
        raise UsageError(f"--url must begin with http:// or https://, got '{base_url}'.")
    import httpx  # noqa: PLC0415  takes a second, which `--help` should not cost

    from pallas_gateway.http_answers import limited  # noqa: PLC0415

    bypass_proxies()
    try:
        async with limited(httpx.AsyncClient(timeout=REGISTRY_SECONDS)) as client:
            response = await client.request(method, f"{base_url}{path}", headers=authorization(bearer))
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise not_reached(base_url, error) from error
    if response.is_error:
        raise _refusal(base_url, path, response, bearer)
    if response.status_code == HTTPStatus.NO_CONTENT:
        return None
    try:
        return response.json()
    except ValueError as error:
        raise UnreachableError(f"What answers at {base_url}{path} is not a gateway.") from error


def _refusal(base_url: str, path: str, response: httpx.Response, bearer: str | None) -> Exception:
    sentence = _sentence(response)
    if response.status_code == HTTPStatus.SERVICE_UNAVAILABLE:
        return UnavailableError(f"{base_url} refused: {sentence or why_refused(response, bearer)}")
    if response.status_code == HTTPStatus.UNAUTHORIZED:
        return RefusedError(f"{base_url} refused: {why_refused(response, bearer)}")
    if sentence is None:
        return UnreachableError(f"{base_url} has no {path} (HTTP {response.status_code}); it may be an older gateway.")
    return ApiRefusedError(f"{base_url} refused: {sentence} (HTTP {response.status_code})")


def _sentence(response: httpx.Response) -> str | None:
    """Return the sentence of an error of this API; None for a response of something else."""
    try:
        sentence = response.json()["error_description"]
    except (ValueError, LookupError, TypeError):
        return None
    return sentence.rstrip(".") if isinstance(sentence, str) else None
