"""Why a model could not answer, in the same words for every provider."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pallas_gateway.calls.provider_failures import NO_HEADER, NO_URL
from tests.e2e.provider_matrix import (
    ANTHROPIC,
    FORMATS,
    GEMINI,
    GENERIC,
    OPENRESPONSES,
    RESPONSES,
    TENSORZERO,
    WEBSOCKET,
)
from tests.e2e.providers import KEY, serving
from tests.support.calling import ask
from tests.support.scripted_llm import Reply, cut, end_early, error_event, garbage, hang, say
from tests.support.waiting import Gate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tests.e2e.providers import Provider
    from tests.support.providers.provider import ScriptedProvider
    from tests.support.scripted_llm import Turn

SOON: Mapping[str, str] = {"retry_after": "0.01"}
PAGE = Reply(502, b"<html><body>Bad gateway</body></html>", "text/html", {"retry-after": "0.01"})
INCOMPLETE = "what its provider sent is not a complete answer"
CUT_OFF = "the connection to its provider was cut off"
FAULTS: Mapping[str, tuple[Callable[[ScriptedProvider], Turn], str]] = {
    "ended early": (lambda _: end_early(), "the provider's answer ended early"),
    "cut off": (lambda _: cut(), CUT_OFF),
    "reported": (lambda _: error_event(f"too many for {KEY}"), "its provider reported: too many for ****"),
    "400": (lambda llm: llm.refuse(400, "no such parameter"), "its provider answered 400: no such parameter"),
    "401": (
        lambda llm: llm.refuse(401, f"wrong key {KEY}"),
        "its provider answered 401 (check its API key): wrong key ****",
    ),
    "403": (
        lambda llm: llm.refuse(403, "not for you"),
        "its provider answered 403 (check what its API key may use): not for you",
    ),
    "404": (
        lambda llm: llm.refuse(404, "no such model"),
        "its provider answered 404 (check the model's name and the provider's address): no such model",
    ),
    "429": (lambda llm: llm.refuse(429, "slow down", **SOON), "its provider answered 429 (try again later): slow down"),
    "503": (
        lambda llm: llm.refuse(503, "overloaded", **SOON),
        "its provider answered 503 (try again later): overloaded",
    ),
    "a page": (lambda _: PAGE, "its provider answered 502 (try again later)"),
    "garbage": (lambda _: garbage(), INCOMPLETE),
    "silence": (lambda _: hang(Gate()), "its provider sent nothing for 2 s"),
}
OWN_WORDS = {
    ("google", "reported"): "its provider answered 503 (try again later): too many for ****",  # its events have one
    ("bedrock", "a page"): "its provider answered 502 (try again later): Bad Gateway",  # the library's words for 502
    ("responses by WebSocket", "a page"): INCOMPLETE,  # not a status, but a frame
}


@pytest.mark.parametrize("provider", [*FORMATS, WEBSOCKET, OPENRESPONSES, TENSORZERO], ids=str)
async def test_every_failure_is_reported_in_the_same_words(
    provider: Provider, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="pallas.runtime")
    reasons = {}
    async with serving(
        tmp_path, provider, lambda _: fault(served.llm), params="max_tokens=500, streaming_timeout=2"
    ) as served:
        for name, (fault, _) in FAULTS.items():  # noqa: B007  the script is the current one
            reasons[name] = (await ask(served.url)).text
        address = served.llm.base_url.removeprefix("http://")

    model = provider.model.partition("?")[0]
    expected = {name: OWN_WORDS.get((provider.name, name), words) for name, (_, words) in FAULTS.items()}
    assert reasons == {name: f"The model could not answer: {model}: {words}" for name, words in expected.items()}
    repeated = [record for record in caplog.records if record.message == "LLM request repeated"]
    assert not [record for record in repeated if address in str(record.__dict__)]


UNSENDABLE: Mapping[str, tuple[Mapping[str, str], str]] = {
    "line break": ({"api_key": f"{KEY}\n4711"}, NO_HEADER),
    "letter": ({"api_key": f"ü{KEY}"}, NO_HEADER),
    "no scheme": ({"base_url": "localhost:8000/v1"}, NO_URL),
}


@pytest.mark.parametrize("provider", [GENERIC, RESPONSES, ANTHROPIC, GEMINI], ids=str)
async def test_a_request_that_cannot_be_sent_names_the_setting(provider: Provider, tmp_path: Path) -> None:
    reasons = {}
    for name, (setting, _) in UNSENDABLE.items():
        wrong = replace(provider, config={**provider.config, **setting})
        async with serving(tmp_path / name, wrong, lambda _: say("Done.")) as served:
            reasons[name] = (await ask(served.url)).text

    expected = {name: f"The model could not answer: {provider.model}: {why}" for name, (_, why) in UNSENDABLE.items()}
    if provider is ANTHROPIC:
        expected["letter"] = "Done."  # its library sends UTF-8
    assert reasons == expected
