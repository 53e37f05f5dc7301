"""Checks that LLM providers answer, accept their key and know the model: before agents start, and later again.

A failed check is a warning. Checks request models, never a completion. Answers are not logged, because providers quote
keys.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from http import HTTPStatus
from time import monotonic
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx

from pallas_gateway.core.health.probe import http_error
from pallas_gateway.core.health.verdict import LlmResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pallas_gateway.limits import HealthLimits
    from pallas_gateway.runtime.protocols import LlmProvider
    from pallas_gateway.tasks import TaskOwner
    from pallas_gateway.telemetry.metrics import Metrics

ACCESS_MODEL = "claude-sonnet-4-5"  # requested to check a key where no model is configured
_ANTHROPIC_VERSION = "2023-06-01"
_LISTS_ITS_MODELS = ("openai", "responses")
"""Providers whose list of models is complete; compatible servers may name models differently."""
_REFUSED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
_ABSENT = (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED)
_log = logging.getLogger("pallas.preflight")


@dataclass(eq=False, slots=True)
class _Checked:
    """One provider with a model in use, and its last result; `asked` is a monotonic time."""

    provider: LlmProvider
    latest: LlmResult | None = None
    asked: float = 0.0
    asking: asyncio.Task[None] | None = None


class Preflight:
    """Checks the providers, and keeps the results and gauges of those whose models agents use."""

    def __init__(self, *, client: httpx.AsyncClient, tasks: TaskOwner, metrics: Metrics, limits: HealthLimits) -> None:
        self._client = client
        self._tasks = tasks
        self._metrics = metrics
        self._limits = limits
        self._checked: list[_Checked] = []

    async def run(self, providers: Sequence[LlmProvider]) -> None:
        """Check all providers at once, and log one line for each; results of another configuration are dropped."""
        self._checked = []
        results = await asyncio.gather(*(self._ask(provider) for provider in providers))
        for provider, result in zip(providers, results, strict=True):
            _log_result(result)
            if provider.model is not None:
                self._remember(self._of(provider), result)

    def known(self, provider: LlmProvider | None) -> LlmResult | None:
        """The provider's last result, None before the first; a missing or stale one is renewed in the background."""
        if provider is None:
            return None
        one = self._of(provider)
        is_stale = one.latest is None or monotonic() - one.asked > self._limits.stale_seconds
        if is_stale and (one.asking is None or one.asking.done()):
            one.asking = self._tasks.spawn(self._ask_again(one), name="preflight again", report=True)
        return one.latest

    async def result(self, provider: LlmProvider | None) -> LlmResult | None:
        """Return the last result; wait for the first one, at most as long as a probe may take."""
        known = self.known(provider)
        if known is None and provider is not None and (asking := self._of(provider).asking) is not None:
            await asyncio.wait({asking}, timeout=self._limits.probe_seconds)
            known = self._of(provider).latest
        return known

    def _of(self, provider: LlmProvider) -> _Checked:
        found = next((one for one in self._checked if one.provider == provider), None)
        if found is None:
            found = _Checked(provider)
            self._checked.append(found)
        return found

    async def _ask_again(self, one: _Checked) -> None:
        before, result = one.latest, await self._ask(one.provider)
        if before is None or (before.status, before.error) != (result.status, result.error):
            _log_result(result)
        self._remember(one, result)

    async def _ask(self, provider: LlmProvider) -> LlmResult:
        return await ask(provider, self._client, seconds=self._limits.preflight_seconds)

    def _remember(self, one: _Checked, result: LlmResult) -> None:
        one.latest, one.asked = result, monotonic()
        same = (each.latest for each in self._checked if each.provider.name == result.provider)
        words = [latest.status for latest in same if latest is not None and latest.status != "not checked"]
        if words:
            self._metrics.llm_provider_up.labels(result.provider).set(all(word == "ok" for word in words))


def _log_result(result: LlmResult) -> None:
    extra = {"provider": result.provider, **({"model": result.model} if result.model else {})}
    if result.status == "failed":
        # Calls are tried all the same.
        _log.warning("LLM provider failed its check", extra={**extra, "error": result.error})
    elif result.status == "not checked":
        _log.info("LLM provider not checked", extra={**extra, "why": result.error})
    else:
        _log.info("LLM provider answers", extra={**extra, **({"warning": result.warning} if result.warning else {})})


async def ask(provider: LlmProvider, client: httpx.AsyncClient, *, seconds: float) -> LlmResult:
    """Check one provider within `seconds`; an error is a result, never an exception."""
    result = LlmResult(provider.name, provider.model, "ok", None, datetime.now(UTC))
    if (why := _why_not_asked(provider)) is not None:
        return replace(result, status="not checked", error=why)
    try:
        async with asyncio.timeout(seconds):
            error = await _ask(provider, client)
    except TimeoutError:
        error = f"no answer within {seconds:g} s"
    except Exception as failure:  # noqa: BLE001  an unexpected answer must not prevent the start
        error = http_error(failure)
        if error is None:
            _log.exception("unexpected error in preflight", extra={"provider": provider.name})
            error = f"the check failed: {type(failure).__name__}"
    if error is not None and error == _not_found(provider) and provider.is_elsewhere:
        # Many model servers take any name, list their models by others, or have no page for one.
        return replace(
            result, warning="the server at base_url lists no model of this name; a call shows if it accepts it"
        )
    return replace(result, status="ok" if error is None else "failed", error=error)


def _why_not_asked(provider: LlmProvider) -> str | None:
    if provider.api is None:
        return "there is no check for this provider"
    if provider.url is None:
        return "no base_url is configured"
    return "no key is configured" if provider.key is None else None


async def _ask(provider: LlmProvider, client: httpx.AsyncClient) -> str | None:
    url, headers = _request(provider, provider.key.reveal() if provider.key is not None else "")
    response = await client.get(url, headers=headers)
    status, body = response.status_code, _decoded(response)
    if provider.api == "anthropic":
        return anthropic_error(provider, status, body)
    if provider.api == "google":
        return google_error(provider, status, body)
    return openai_error(provider, status, body)


def _request(provider: LlmProvider, key: str) -> tuple[str, httpx.Headers]:
    """URL and headers of the check; configured headers override its own."""
    base, model = str(provider.url).rstrip("/"), quote(provider.model or ACCESS_MODEL, safe="")
    url, credentials = f"{base}/models", {"Authorization": f"Bearer {key}"}
    if provider.api == "anthropic":
        url = f"{base.removesuffix('/v1')}/v1/models/{model}"
        credentials = {"x-api-key": key, "anthropic-version": _ANTHROPIC_VERSION}
    elif provider.api == "google":
        one = f"/{quote(provider.model.removeprefix('models/'), safe='')}" if provider.model is not None else ""
        url, credentials = f"{base}/v1beta/models{one}", {"x-goog-api-key": key}
    elif provider.api == "azure":
        url, credentials = f"{base}/openai/models?api-version={provider.api_version}", {"api-key": key}
    headers = httpx.Headers(credentials)
    headers.update(provider.headers)
    return provider.key_url or url, headers


def anthropic_error(provider: LlmProvider, status: int, body: dict[str, Any]) -> str | None:
    """Return the error in an answer to `GET /v1/models/{model}`, None if there is none."""
    if _is_of_the_model(provider, status, body):
        return _not_found(provider)  # the API checks the key before the model
    if (error := _refusal(status)) is not None:
        return error
    return None if "id" in body or status == HTTPStatus.TOO_MANY_REQUESTS else "what answers is not Anthropic's API"


def google_error(provider: LlmProvider, status: int, body: dict[str, Any]) -> str | None:
    """Return the error in an answer to Gemini's `GET /v1beta/models/{model}` or its list, None if there is none."""
    if _is_of_the_model(provider, status, body) and provider.model is not None:
        return _not_found(provider)
    if (error := _refusal(status)) is not None or status == HTTPStatus.TOO_MANY_REQUESTS:
        return error
    return None if "name" in body or "models" in body else "what answers is not Gemini's API"


def openai_error(provider: LlmProvider, status: int, body: dict[str, Any]) -> str | None:
    """Return the error in an answer to `GET /models`, None if there is none."""
    is_complete = provider.name in _LISTS_ITS_MODELS
    if status in _ABSENT and not is_complete:
        return None  # the key was accepted; not every compatible server lists its models
    error = _refusal(status)
    if error is not None or status == HTTPStatus.TOO_MANY_REQUESTS or provider.key_url is not None:
        return error
    entries = body.get("data")
    if not isinstance(entries, list):
        return "what answers is not a list of models"
    names = {entry.get("id") for entry in entries if isinstance(entry, dict)}
    return _not_found(provider) if is_complete and provider.model not in names else None


def _is_of_the_model(provider: LlmProvider, status: int, body: dict[str, Any]) -> bool:
    """Return true for an answer about the model alone."""
    return status in _ABSENT if provider.is_elsewhere else status == HTTPStatus.NOT_FOUND and "error" in body


def _not_found(provider: LlmProvider) -> str | None:
    return f"model '{provider.model}' not found" if provider.model is not None else None


def _refusal(status: int) -> str | None:
    """The error of a status; "too many requests" is an answer to a valid key."""
    if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES or status == HTTPStatus.TOO_MANY_REQUESTS:
        return None
    if status in _REFUSED:
        return f"the key was refused (HTTP {status})"
    if status == HTTPStatus.BAD_REQUEST:  # from Gemini and xAI for an unknown key
        return f"HTTP {status}, is the key right?"
    hint = ", is base_url right?" if status in _ABSENT else ""
    return f"HTTP {status}{hint}"


def _decoded(response: httpx.Response) -> dict[str, Any]:
    try:
        body = response.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}
