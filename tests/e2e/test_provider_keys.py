"""Keys and logins of providers: where a provider quotes a key, the gateway shows it nowhere."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
import yaml
from fast_agent.llm.provider_key_manager import ProviderKeyManager
from fast_agent.llm.provider_types import Provider as FastAgentProvider

from pallas_gateway import cloud_logins
from pallas_gateway.config.loading.secret_values import is_secret_name
from tests.e2e.canaries import Run, leaks
from tests.support import provider_matrix as matrix
from tests.support.calling import ask, health
from tests.support.clients import MODERN_VERSION
from tests.support.commands import PATIENT_GATEWAY, READY_SECONDS, started
from tests.support.gateway import Agent, module_source, write_project
from tests.support.provider_gateways import KEY, Provider, serving
from tests.support.provider_matrix import ANTHROPIC_VERTEX, GEMINI_VERTEX
from tests.support.providers.provider import ScriptedProvider, scripted_provider
from tests.support.scripted_llm import LlmRequest, Reply, Turn, say
from tests.support.waiting import Gate

VARIABLES = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_BEARER_TOKEN_BEDROCK", "ANTHROPIC_AUTH_TOKEN")
AZURES = ("AZURE_OPENAI_API_KEY", "AZURE_OPENAI_AD_TOKEN", "AZURE_CLIENT_SECRET", "AZURE_PASSWORD")


@pytest.mark.parametrize("provider", FastAgentProvider, ids=str)
def test_the_variable_of_each_providers_key_is_known_to_hold_a_secret(provider: FastAgentProvider) -> None:
    name = ProviderKeyManager.get_env_key_name(provider.config_name)
    assert name is None or is_secret_name(name)


@pytest.mark.parametrize("name", [*VARIABLES, *AZURES])
def test_the_variables_that_libraries_read_are_known_to_hold_secrets(name: str) -> None:
    assert is_secret_name(name)


@dataclass(frozen=True)
class Given:
    """How the key of a provider's agent is given; `variable` names its environment variable."""

    provider: Provider
    way: str
    variable: str = ""

    @property
    def agent(self) -> str:
        return self.provider.name

    @property
    def key(self) -> str:
        return f"canaryof{self.provider.name}{self.way}"


# googleoai has the section and the file of google.
GIVEN = (
    Given(matrix.GENERIC, "decorator"),
    Given(matrix.OPENAI, "environment", "OPENAI_API_KEY"),
    Given(matrix.AZURE, "secrets"),
    Given(matrix.OPENROUTER, "dotenv", "OPENROUTER_API_KEY"),
    Given(matrix.GROQ, "module", "GROQ_API_KEY"),
    Given(matrix.HF, "login"),
    Given(matrix.ALIYUN, "config"),
    Given(matrix.ZAI, "decorator"),
    Given(matrix.MOONSHOT, "module", "MOONSHOT_API_KEY"),
    Given(matrix.TENSORZERO, "environment", "TENSORZERO_API_KEY"),
    Given(matrix.RESPONSES, "secrets"),
    Given(matrix.DEEPSEEK, "dotenv", "DEEPSEEK_API_KEY"),
    Given(matrix.XAI, "module", "XAI_API_KEY"),
    Given(matrix.METAAI, "environment", "META_AI_API_KEY"),
    Given(matrix.OPENRESPONSES, "module", "OPENRESPONSES_API_KEY"),
    Given(matrix.ANTHROPIC, "decorator"),
    Given(matrix.GEMINI, "module", "GOOGLE_API_KEY"),
    Given(matrix.BEDROCK, "login"),
)
KEYS = tuple(one.key for one in GIVEN)


def quoted_by(llm: ScriptedProvider, request: LlmRequest) -> Turn:
    """Refuse a request with the key that it came with; that of Bedrock signs it and is not sent."""
    sent = (key for key in KEYS if any(key in value for value in request.headers.values()))
    return llm.refuse(403, f"there is no entry for {next(sent, GIVEN[-1].key)} here")


async def test_a_key_that_its_provider_quotes_is_shown_nowhere_however_it_was_given(tmp_path: Path) -> None:
    project, log = tmp_path / "project", tmp_path / "log"
    async with AsyncExitStack() as stack:
        config: dict[str, dict[str, str]] = {}
        environ: dict[str, str] = {}
        for one in GIVEN:
            llm = await stack.enter_async_context(scripted_provider(one.provider.dialect))
            llm.script = partial(quoted_by, llm)
            config[one.provider.section or one.provider.name] = {
                name: one.key if name == "api_key" else value.format(url=llm.base_url)
                for name, value in one.provider.config.items()
                if name != "api_key" or one.way == "config"
            }
            environ |= {name: value.format(url=llm.base_url) for name, value in one.provider.environ.items()}
        environ |= {one.variable: one.key for one in GIVEN if one.way == "environment"}
        environ |= logins(tmp_path)
        environ |= {"PALLAS_LOG_LEVEL": "DEBUG", "PALLAS_ROOT_LOG_LEVEL": "DEBUG", "PALLAS_LOG_FILE": str(log)}
        write_project(project, {one.agent: agent_of(one) for one in GIVEN}, fastagent=config)
        secrets = {one.provider.name: {"api_key": one.key} for one in GIVEN if one.way == "secrets"}
        (project / "fastagent.secrets.yaml").write_text(yaml.safe_dump(secrets))
        (project / ".env").write_text("".join(f"{one.variable}={one.key}\n" for one in GIVEN if one.way == "dotenv"))
        with started(["serve"], project, command=PATIENT_GATEWAY, environ=environ) as program:
            await asyncio.to_thread(program.wait_for, "Registry:")
            run = Run(program, llm, "canarycallersbearer")
            answers = {one.agent: await ask(run.url(one.agent)) for one in GIVEN}
            await run.look_around()
            await run.health("hf", MODERN_VERSION)
            program.signal(signal.SIGTERM)
            ran = await asyncio.to_thread(program.end, READY_SECONDS)

    texts = {name: answer.text for name, answer in answers.items()}
    assert {name for name, text in texts.items() if "there is no entry for **** here" not in text} == set()
    outputs = {"stdout": ran.out, "stderr": ran.err, "log": log.read_text(), "http": "\n".join(run.bodies), **texts}
    assert leaks(outputs, KEYS) == set()
    failed = [record for line in log.read_text().splitlines() if (record := json.loads(line)).get("reason")]
    assert {one["agent"] for one in failed if one["reason"] == "llm_error"} == {one.agent for one in GIVEN}


def agent_of(one: Given) -> Agent:
    plain = Agent(model=one.provider.model, decorator=f"api_key={one.key!r}" if one.way == "decorator" else "")
    if one.way != "module":
        return plain
    setting = f"import os\nos.environ[{one.variable!r}] = {one.key!r}\n"
    return Agent(source=setting + module_source(one.agent, plain))


def logins(folder: Path) -> dict[str, str]:
    """The files that `aws configure` and `hf auth login` write, as the variables that name them."""
    aws, hf = folder / "aws-credentials", folder / "hf-token"
    keys = {one.provider.name: one.key for one in GIVEN if one.way == "login"}
    aws.write_text(f"[default]\naws_access_key_id = AKIAOFTHETESTS000000\naws_secret_access_key = {keys['bedrock']}\n")
    hf.write_text(keys["hf"])
    none = dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN"), "")
    return {**none, "AWS_SHARED_CREDENTIALS_FILE": str(aws), "HF_TOKEN_PATH": str(hf)}


# --- providers that log in with an identity of Google Cloud -----------------------------------------------------------

on_vertex = pytest.mark.parametrize("provider", [GEMINI_VERTEX, ANTHROPIC_VERTEX], ids=str)


@pytest.fixture(autouse=True)
def no_identity_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloud_logins, "_kept", {})


def done(_: LlmRequest) -> Turn:
    return say("Done.")


@on_vertex
async def test_calls_that_wait_for_a_slow_login_share_it_and_block_none(provider: Provider, tmp_path: Path) -> None:
    gate = Gate()
    async with serving(tmp_path, provider, done) as served, asyncio.TaskGroup() as group:
        served.llm.logins.append(gate)
        waiting = [group.create_task(ask(served.url)) for _ in range(2)]
        await gate.wait_for_entered()
        assert (await health(served.url))["status"] == "ok"
        async with served.in_flight() as left:
            await left.vanish()  # who began the login may leave, and so may who waits for it
        gate.open()

    assert [task.result().text for task in waiting] == ["Done."] * 2
    assert served.llm.login_count == 1


@on_vertex
async def test_a_refused_login_fails_the_call_and_the_next_call_logs_in(provider: Provider, tmp_path: Path) -> None:
    refused = {"error": "invalid_grant", "error_description": f"the account of {KEY} is gone"}
    async with serving(tmp_path, provider, done) as served:
        served.llm.logins.append(Reply(400, json.dumps(refused).encode(), "application/json"))
        failed, answered = await ask(served.url), await ask(served.url)

    why = ": Google's login failed: the account of"
    assert (why in failed.text, failed.meta["stop_reason"]) == (True, "llm_error"), failed.text
    assert answered.text == "Done."


@on_vertex
async def test_without_credentials_the_agent_is_refused_with_the_reason(
    provider: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = replace(provider, config={}, environ={}, logs_in=False)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "missing.json"))
    async with serving(tmp_path / "project", nowhere, []) as served:
        document = await health(served.url)

    assert document["status"] == "error"
    assert "Google's credentials cannot be loaded" in document["message"]
    assert "GOOGLE_APPLICATION_CREDENTIALS" in document["message"]


@on_vertex
async def test_without_googles_http_package_the_agent_is_refused_with_the_reason(
    provider: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "google.auth.transport.requests", None)
    async with serving(tmp_path, provider, []) as served:
        document = await health(served.url)

    assert document["status"] == "error"
    assert "pip install requests" in document["message"]
