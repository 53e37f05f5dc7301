"""PDFs that callers send: what of them reaches the model, and what a caller is told where none does."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from tests.support.calling import EACH_VERSION, ask
from tests.support.gateway import Agent, gateway_and_model
from tests.support.pairs import pairs
from tests.support.provider_gateways import serving
from tests.support.provider_matrix import ANTHROPIC
from tests.support.scripted_llm import say, text_of

each_version = pytest.mark.parametrize("version", EACH_VERSION)
DOCUMENTS, NO_DOCUMENTS = {"documents": True}, {"documents": False}


def pdf(content: bytes = b"%PDF-1.7 and so on", **more: Any) -> dict[str, Any]:
    return {"data": base64.b64encode(content).decode(), "mime_type": "application/pdf", **more}


READING = {
    "declared": Agent(model="generic.reader-1", settings={"model_capabilities": DOCUMENTS}),
    "declared without images": Agent(
        model="generic.reader-2", settings={"model_capabilities": DOCUMENTS | {"vision": False}}
    ),
    "known to fast-agent": Agent(model="generic.gpt-4o"),
    "known to fast-agent, and the agent declares something else": Agent(
        model="generic.gpt-4o", settings={"model_capabilities": {"vision": True}}
    ),
}
_PICTURES, _NOTHING = "image/jpeg, image/png, image/webp", "no documents; send text only"
REFUSING = {
    "declared against what fast-agent knows": (
        Agent(model="generic.gpt-4o", settings={"model_capabilities": NO_DOCUMENTS | {"vision": True}}),
        _PICTURES,
    ),
    "declared for a model that fast-agent knows without": (
        Agent(model="generic.glm-5.2", settings={"model_capabilities": DOCUMENTS}),
        _NOTHING,
    ),
    "unknown to everybody": (Agent(model="generic.closed-1"), _NOTHING),
    "declared with vision only": (
        Agent(model="generic.closed-2", settings={"model_capabilities": {"vision": True}}),
        _PICTURES,
    ),
}


@pairs({"agent": READING, "version": EACH_VERSION})
async def test_documents_of_the_turn_and_of_the_history_reach_the_model(
    version: str, agent: Agent, tmp_path: Path
) -> None:
    history = [
        {"role": "user", "content": "earlier", "images": [pdf(b"%PDF-1.4 old", name="old.pdf")]},
        {"role": "assistant", "content": "I see"},
    ]
    async with gateway_and_model(tmp_path, {"scribe": agent}) as (served, llm):
        answer = await ask(
            served.url("scribe"),
            "compare",
            version=version,
            images=[pdf(), pdf(name="a/b?.PDF")],
            history=history,
        )
    [request] = llm.requests
    assert not answer.is_error
    old, new = pdf(b"%PDF-1.4 old")["data"], pdf()["data"]
    assert request.documents == [("old.pdf", old), ("document.pdf", new), ("a_b_.PDF", new)]
    assert text_of(request.messages[-1]) == "compare"


@each_version
async def test_claude_gets_a_document_block_with_the_name_as_its_title(version: str, tmp_path: Path) -> None:
    async with serving(tmp_path, ANTHROPIC, [say("A report.")]) as served:
        answer = await ask(served.url, "Read.", version=version, images=[pdf(name="Report 2026")])

    assert answer.text == "A report."
    [block] = [one for one in served.llm.requests[0].body["messages"][0]["content"] if one["type"] == "document"]
    source = {"type": "base64", "media_type": "application/pdf", "data": pdf()["data"]}
    assert (block["title"], block["source"]) == ("Report 2026.pdf", source)


async def test_a_large_document_reaches_the_model_whole(tmp_path: Path) -> None:
    large = pdf(b"%PDF-1.7 " + bytes(1_000_000))
    async with gateway_and_model(tmp_path, {"scribe": Agent(model="generic.gpt-4o")}) as (served, llm):
        for _ in range(2):  # the first request of a client is the library's
            await ask(served.url("scribe"), "read", images=[large])
    assert [one.documents for one in llm.requests] == [[("document.pdf", large["data"])]] * 2


@pytest.mark.parametrize(("agent", "takes"), REFUSING.values(), ids=REFUSING)
async def test_documents_for_a_model_that_takes_none_are_refused_with_the_reason(
    agent: Agent, takes: str, tmp_path: Path
) -> None:
    async with gateway_and_model(tmp_path, {"scribe": agent}) as (served, llm):
        answer = await ask(served.url("scribe"), "read", images=[pdf()])
        refused = served.metric("pallas_calls_refused_total", agent="scribe", reason="images_unsupported")
    assert llm.requests == []
    model = str(agent.model).removeprefix("generic.")
    why = f"uses the model '{model}', which does not take document 1 (application/pdf). It takes {takes}."
    assert (answer.is_error, answer.text) == (True, f"Agent 'scribe' {why}")
    assert (answer.meta["stop_reason"], refused) == ("images_unsupported", 1)
