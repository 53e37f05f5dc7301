"""Azure's login blocks the event loop, and is made for every turn."""

import asyncio
from importlib import import_module
from pathlib import Path

import httpx
import pytest

from tests.support.asgi import Receive, Scope, Send, respond_json
from tests.support.calling import Answer, ask, health
from tests.support.commands import started
from tests.support.gateway import Agent, write_project
from tests.support.listener import serve_app
from tests.support.provider_gateways import KEY, Provider, serving
from tests.support.provider_matrix import AZURE
from tests.support.providers.provider import scripted_provider
from tests.support.scripted_llm import say
from tests.support.waiting import Gate

AZURE_BY_IDENTITY = Provider("azure", AZURE.model, None, {"base_url": "{url}", "azure_deployment": "deployment"})
IDENTITY = {"use_default_azure_credential": True}


async def test_without_azures_package_the_agent_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_module("fast_agent.llm.provider.openai.llm_azure"), "DefaultAzureCredential", None)
    provider = Provider("azure", AZURE.model, None, AZURE_BY_IDENTITY.config, more=IDENTITY)
    async with serving(tmp_path, provider, []) as served:
        document = await health(served.url)

    assert document["status"] == "error"
    assert "You must install 'azure-identity'" in document["message"]


FAKE_PACKAGE = '''
import json, os, time, urllib.request
from types import SimpleNamespace


class DefaultAzureCredential:
    """Blocks, as the library's does. Each object logs in for itself."""

    def __init__(self):
        self._ask("made")

    def get_token(self, *scopes):
        return SimpleNamespace(token=self._ask("token")["token"], expires_on=time.time() + 3600)

    def _ask(self, what):
        with urllib.request.urlopen(os.environ["TESTS_LOGIN_URL"] + "/" + what) as answer:
            return json.load(answer)
'''


async def test_azure_logs_in_once_in_a_thread(tmp_path: Path) -> None:
    package = tmp_path / "packages" / "azure" / "identity"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(FAKE_PACKAGE)
    (package.parent / "__init__.py").write_text("")
    gate, asked = Gate(), []

    async def login(scope: Scope, receive: Receive, send: Send) -> None:
        del receive
        if scope["type"] == "http":
            asked.append(scope["path"])
            if scope["path"] == "/token":
                await gate.enter("login")
            await respond_json(send, 200, {"token": KEY})

    async with scripted_provider(None, lambda _: say("Done.")) as llm, serve_app(login) as server:
        config = {"base_url": llm.base_url, "azure_deployment": "deployment", **IDENTITY}
        write_project(tmp_path / "project", {"solo": Agent(model=AZURE.model)}, fastagent={"azure": config})
        environ = {"PYTHONPATH": str(package.parent.parent), "TESTS_LOGIN_URL": server.base_url}
        with started(["serve"], tmp_path / "project", environ=environ) as program:
            await asyncio.to_thread(program.wait_for, "Registry:")
            base = program.url.replace("localhost", "127.0.0.1")
            url = f"{base}/agents/solo/mcp"
            async with asyncio.TaskGroup() as group, httpx.AsyncClient(base_url=base) as client:
                waiting = [group.create_task(ask(url)) for _ in range(2)]
                await gate.wait_for_entered(timeout_seconds=60)
                assert (await client.get("/livez")).status_code == 200
                gate.open()
            answers: list[Answer] = [*(task.result() for task in waiting), await ask(url)]
            llm.script = lambda _: llm.refuse(403, f"no role for {KEY}")
            refused = await ask(url)

    assert [answer.text for answer in answers] == ["Done."] * 3
    assert asked == ["/made", "/token"]
    assert {request.bearer for request in llm.requests} == {KEY}
    assert "no role for ****" in refused.text
