"""OpenRouter's list of models, which tells what a model can do."""

from pathlib import Path

from fast_agent.config import OpenRouterSettings, Settings
from fast_agent.context import Context
from fast_agent.llm.model_database import ModelDatabase
from fast_agent.llm.model_factory import ModelFactory
from fast_agent.llm.provider_types import Provider as ProviderName
from fast_agent.mcp.auth.context import request_bearer_token

from pallas_gateway.repairs.openai import openrouter_models
from pallas_gateway.runtime import preparation
from tests.support.asgi import Receive, Scope, Send, respond_json
from tests.support.calling import ask
from tests.support.gateway import Agent, running, until_idle, write_project
from tests.support.listener import serve_app
from tests.support.provider_gateways import KEY, serving
from tests.support.provider_matrix import OPENROUTER
from tests.support.scripted_llm import ScriptedLlm, say
from tests.support.waiting import Gate


async def test_a_list_that_fails_is_not_asked_for_in_each_call(tmp_path: Path) -> None:
    async with serving(tmp_path, OPENROUTER, lambda _: say("Done.")) as served:
        asked = len(served.llm.model_list_headers)
        for _ in range(3):
            assert (await ask(served.url)).text == "Done."

        assert len(served.llm.model_list_headers) == asked


class ModelList:
    """OpenRouter's list of models, which is answered when its gate opens; `llm` answers all else."""

    def __init__(self, model: str, llm: ScriptedLlm | None = None) -> None:
        self.model = model
        self.llm = llm or ScriptedLlm()
        self.gate = Gate()
        self.keys: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not scope.get("path", "").endswith("/models/user"):
            await self.llm(scope, receive, send)
        else:
            self.keys.append(dict(scope["headers"])[b"authorization"].decode())
            await self.gate.enter("list")
            model = {"id": self.model, "top_provider": {"context_length": 5000, "max_completion_tokens": 777}}
            await respond_json(send, 200, {"data": [model]})


async def test_a_model_is_known_once_its_agent_has_started(tmp_path: Path) -> None:
    models = ModelList("vendor/just-listed", ScriptedLlm(lambda _: say("Done.")))
    models.gate.open()
    async with serve_app(models) as listener:
        fastagent = {"openrouter": {"api_key": KEY, "base_url": f"{listener.base_url}/v1"}}
        agents = {"solo": Agent(model="openrouter.vendor/just-listed")}
        async with running(write_project(tmp_path, agents, fastagent=fastagent)) as gateway:
            assert (await ask(gateway.url("solo"), params={"max_tokens": 5000})).text == "Done."
            await until_idle(gateway)

    assert [request.body["max_tokens"] for request in models.llm.requests] == [777]
    assert models.keys == [f"Bearer {KEY}"]


async def test_an_unknown_model_is_looked_up_beside_the_calls() -> None:
    preparation.prepare()
    models = ModelList("vendor/looked-up")
    async with serve_app(models) as listener:
        settings = Settings(openrouter=OpenRouterSettings(api_key=KEY, base_url=f"{listener.base_url}/v1"))
        llm_class = ModelFactory._load_provider_class(ProviderName.OPENROUTER)
        for _ in range(2):
            llm_class(context=Context(config=settings), model="vendor/looked-up")
        assert ModelDatabase.get_model_params("vendor/looked-up") is None

        await models.gate.wait_for_entered()  # the event loop was free to answer
        models.gate.open()
        await openrouter_models.settled()

    assert ModelDatabase.get_max_output_tokens("vendor/looked-up") == 777
    assert models.keys == [f"Bearer {KEY}"]
    await openrouter_models.close()


async def test_a_callers_token_never_goes_where_the_list_is() -> None:
    preparation.prepare()
    models = ModelList("vendor/another")
    models.gate.open()
    async with serve_app(models) as listener:
        llm_class = ModelFactory._load_provider_class(ProviderName.OPENROUTER)
        token = request_bearer_token.set("token-of-the-caller")
        try:
            for key in ("token-of-the-caller", KEY):
                settings = Settings(openrouter=OpenRouterSettings(api_key=key, base_url=f"{listener.base_url}/v1"))
                llm_class(context=Context(config=settings), model="vendor/not-on-the-list")
            await openrouter_models.settled()
        finally:
            request_bearer_token.reset(token)

    assert models.keys == [f"Bearer {KEY}"]
    await openrouter_models.close()
