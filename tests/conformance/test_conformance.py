"""The official MCP conformance suite against a served gateway: against a plain agent, against all agents at once, and
against an agent that plays as many of the suite's fixture tools as an agent can.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.downstreams import stateless_downstream
from tests.support.gateway import Agent, running, write_project
from tests.support.scripted_llm import LlmRequest, ScriptedLlm, Turn, call_tools, fail, say, scripted_llm

from .conformance import SuiteResult, installed_conformance, read_expected, run_suite, scenarios_of
from .forms import FORMS, forms_downstream

HERE = Path(__file__).parent
pytestmark = [pytest.mark.needs("typescript"), pytest.mark.whole]
VERSIONS = ["2025-11-25", "2026-07-28"]

# What the contract promises to clients of each version, as the scenarios that look at it.
PROMISED = {
    "2025-11-25": {
        "dns-rebinding-protection",
        "logging-set-level",
        "ping",
        "prompts-list",
        "server-initialize",
        "tools-list",
    },
    "2026-07-28": {
        "caching",
        "dns-rebinding-protection",
        "http-header-validation",
        "prompts-list",
        "server-sse-multiple-streams",
        "server-stateless",
        "tools-list",
    },
}
# The checks of promised scenarios that ask for what the contract does not have: resources, and a tool that needs a
# capability of its client.
NOT_PROMISED = {
    "caching:sep-2549-resources-list-caching-hints",
    "caching:sep-2549-resources-templates-list-caching-hints",
    "server-stateless:sep-2575-missing-capability-http-400",
    "server-stateless:sep-2575-server-rejects-undeclared-capability",
}
# The checks of promised scenarios that need a tool which only the fixture agent has.
PLAYED_IN_PROMISED = {
    "server-stateless:sep-2575-http-server-no-independent-requests-on-stream",
    "server-stateless:sep-2575-server-no-log-without-loglevel",
}
# The check of a promised scenario that asks for prompts, which a single agent has and all at once have not.
PROMPTS_CACHING = "caching:sep-2549-prompts-list-caching-hints"
PLAYED = {
    "test_audio_content": "tools-call-audio",
    "test_embedded_resource": "tools-call-embedded-resource",
    "test_error_handling": "tools-call-error",
    "test_image_content": "tools-call-image",
    "test_multiple_content_types": "tools-call-mixed-content",
    "test_simple_text": "tools-call-simple-text",
}
# Tools of more than one scenario, or of one that cannot pass yet: see the expected failures.
ALSO_PLAYED = [
    "test_input_required_result_capabilities",
    "test_logging_tool",
    "test_streaming_elicitation",
    "test_tool_with_logging",
    "test_tool_with_progress",
]
ASKED = {
    "2025-11-25": {"elicitation-sep1034-defaults", "elicitation-sep1330-enums", "tools-call-elicitation"},
    "2026-07-28": {
        "input-required-result-missing-input-response",
        "input-required-result-multi-round",
        "input-required-result-request-state",
        "input-required-result-result-type",
        "input-required-result-tampered-state",
        "input-required-result-unsupported-methods",
    },
}
"""The scenarios of each version in which the fixture agent asks its caller."""


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_plain_agent_fails_no_check_but_the_expected_ones(version: str, tmp_path: Path) -> None:
    conformance = installed_conformance()
    async with running(write_project(tmp_path / "project", {"plain": Agent()})) as served:
        result = await asyncio.to_thread(
            run_suite, conformance, served.url("plain"), spec_version=version, output=tmp_path / "results"
        )

    assert_as_expected(result, f"plain-{version}.yml")
    assert_kept(result, PROMISED[version], but=NOT_PROMISED | PLAYED_IN_PROMISED)


@pytest.mark.parametrize("version", VERSIONS)
async def test_all_agents_at_once_fail_no_check_but_the_expected_ones(version: str, tmp_path: Path) -> None:
    conformance = installed_conformance()
    async with running(write_project(tmp_path / "project", {"plain": Agent(), "other": Agent()})) as served:
        url = f"{served.base_url}/mcp"
        result = await asyncio.to_thread(run_suite, conformance, url, spec_version=version, output=tmp_path / "results")

    assert_as_expected(result, f"all-{version}.yml")
    promised = PROMISED[version] - {"prompts-list"}
    assert_kept(result, promised, but=NOT_PROMISED | PLAYED_IN_PROMISED | {PROMPTS_CACHING})


@pytest.mark.parametrize("version", VERSIONS)
async def test_an_agent_with_the_suites_tools_fails_no_check_but_the_expected_ones(
    version: str, tmp_path: Path
) -> None:
    conformance = installed_conformance()
    async with scripted_llm(play) as llm, fixture_agent(tmp_path / "project", llm) as url:
        result = await asyncio.to_thread(
            run_suite,
            conformance,
            url,
            spec_version=version,
            output=tmp_path / "results",
            preload=HERE / "say_message.mjs",
        )

    assert_as_expected(result, f"fixture-{version}.yml")
    assert_kept(result, PROMISED[version] | set(PLAYED.values()) | ASKED[version], but=NOT_PROMISED)
    # The suite takes any text for a simple text, a refusal too: so let it be the model that was asked.
    assert set(PLAYED) <= {request.last_user_text for request in llm.requests}


def assert_as_expected(result: SuiteResult, expected_failures: str) -> None:
    differences = result.differences(read_expected(HERE / "expected" / expected_failures))
    assert not differences, "\n".join([f"not as in expected/{expected_failures}:", *differences])


def assert_kept(result: SuiteResult, promised: set[str], *, but: set[str]) -> None:
    """Every promised scenario ran, something in it succeeded, and nothing failed `but` what is not promised."""
    assert promised - scenarios_of(result.passed) == set(), "nothing succeeded in these scenarios"
    assert {name for name in result.failed if name.partition(":")[0] in promised} - but == set()


@asynccontextmanager
async def fixture_agent(path: Path, llm: ScriptedLlm) -> AsyncGenerator[str]:
    """Serve an agent whose message tool has the names of the suite's fixture tools; yields its endpoint."""
    agent = Agent(source=(HERE / "fixture_agent.py").read_text(encoding="utf-8"))
    async with stateless_downstream() as tools, forms_downstream() as forms:
        project = write_project(
            path,
            {"fixture": agent},
            llm_url=llm.base_url,
            servers={name: {"transport": "http", "url": url} for name, url in (("tools", tools.url), ("forms", forms))},
            # The suite leaves some questions without an answer: their calls need not be waited for at the end.
            gateway={"tool_names": [*PLAYED, *ALSO_PLAYED, *FORMS], "drain_seconds": 0.1},
        )
        async with running(project) as served:
            yield served.url("fixture")


def play(request: LlmRequest) -> Turn:
    """The model of the fixture agent; what it is told is the name of the tool to play."""
    tool = request.last_user_text
    if tool == "test_error_handling":
        return fail(500)
    if tool.startswith("test_tool_with_") and not request.tool_results:
        return call_tools([("tools__add", {"a": 1, "b": 2})])  # a round of tools, so that there is news to send
    tool = "test_elicitation" if tool == "Please provide your information" else tool  # which has a message of its own
    if tool in FORMS and not request.tool_results:
        return call_tools([("forms__ask", {"tool": tool})])
    return say(f"This is {tool}.")
