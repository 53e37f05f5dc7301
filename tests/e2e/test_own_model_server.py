"""llama.cpp's server as the provider of models: its answers, their limit, its list of models, and its errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.calling import ask, health
from tests.support.clients import MODERN_VERSION
from tests.support.commands import READY_SECONDS, started
from tests.support.gateway import Agent, Project, running, write_project
from tests.support.watching import watch, watching_meta
from tests.support_programs import program

pytestmark = pytest.mark.needs("llama.cpp")
SERVER = Path(__file__).parents[1] / "model_server"
LIMIT = 40
PNG = {"data": "iVBORw0KGgo=", "mime_type": "image/png"}
AGENTS = {
    "plain": Agent(settings={"model_capabilities": {"max_output_tokens": LIMIT}}),
    "seeing": Agent(settings={"model_capabilities": {"vision": True}}),
    "other": Agent(model="openai.tiny", settings={"model_capabilities": {"max_output_tokens": LIMIT}}),
}


@asynccontextmanager
async def own_model(path: Path) -> AsyncGenerator[Project]:
    """A project whose agents use llama.cpp's server with `tiny_model`, until the block ends."""
    command, pipe = (program("llama.cpp"), SERVER / "server.py", path / "tiny.gguf"), asyncio.subprocess.PIPE
    server = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        url = (await asyncio.wait_for(server.stdout.readline(), 60)).decode().strip()
        assert url, "llama.cpp's server ended before it listened"
        openai = {"api_key": "not-a-key", "base_url": f"{url}/v1"}
        yield write_project(path / "project", AGENTS, llm_url=f"{url}/v1", fastagent={"openai": openai})
    finally:
        server.stdin.close()
        await asyncio.wait_for(server.wait(), 20)


@pytest.mark.whole("e2e/test_providers.py::test_it_answers")
async def test_answers_are_streamed_and_end_by_themselves_or_at_the_declared_limit(tmp_path: Path) -> None:
    meta = {**watching_meta(MODERN_VERSION), "pallas/stream": "delta"}
    async with own_model(tmp_path) as project, running(project) as served:
        answered = await watch(served.url("plain"), "Where is it?", meta=meta)
        endless = await watch(served.url("plain"), "Go on!", meta=meta)
    for watched, text, tokens, reason in [
        (answered, " it is here", 4, "endTurn"),
        (endless, " on" * LIMIT, LIMIT, "maxTokens"),
    ]:
        deltas = [one["text"] for one in watched.payloads if one["kind"] == "assistant_delta"]
        assert (watched.text, "".join(deltas)) == (text, text)
        assert (watched.call["usage"]["output"], watched.call["stop_reason"]) == (tokens, reason)


@pytest.mark.whole("e2e/test_providers.py::test_it_answers")
async def test_it_is_usable_for_check_and_health_though_it_lists_its_model_by_another_name(tmp_path: Path) -> None:
    unlisted = "the server at base_url lists no model of this name; a call shows if it accepts it"
    async with own_model(tmp_path) as project:
        with started(["check", "--online"], project.path) as check:
            ran = await asyncio.to_thread(check.end, READY_SECONDS)
        async with running(project) as served:
            documents = {name: await health(served.url(name)) for name in ("plain", "other")}
            answer = await ask(served.url("other"), "Where is it?")
    assert (ran.code, ran.err.count("warning: ")) == (0, 1)
    assert f"LLM provider 'openai' with the model 'tiny' answers, but {unlisted}" in ran.err
    assert {name: document["status"] for name, document in documents.items()} == {"plain": "ok", "other": "ok"}
    assert [document["llm"].get("warning") for document in documents.values()] == [None, unlisted]
    assert answer.text == " it is here"


@pytest.mark.whole("e2e/test_providers.py::test_it_answers")
async def test_its_errors_reach_the_caller_with_what_to_do(tmp_path: Path) -> None:
    async with own_model(tmp_path) as project, running(project) as served:
        undeclared = await ask(served.url("plain"), "Look?", images=[PNG])
        declared = await ask(served.url("seeing"), "Look?", images=[PNG])
        long = await ask(served.url("plain"), "x" * 3000)
    assert (undeclared.is_error, undeclared.meta["stop_reason"]) == (True, "images_unsupported")
    assert undeclared.text.endswith("which does not take image 1 (image/png). It takes no images; send text only.")
    assert (declared.is_error, long.is_error) == (True, True)
    assert declared.text.startswith(
        "The model could not answer: generic.test-model: its provider answered 500 (send no images: the model takes "
        "none, so declare `vision: false` for it): image input is not supported"
    )
    assert "its provider answered 400: request (" in long.text
    assert "exceeds the available context size (1024 tokens)" in long.text
