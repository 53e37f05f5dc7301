"""`connect`: the texts of the console at the terminal."""

import json

from tests.support.commands import Command, Program


def test_without_a_client_it_lists_them(run: Command) -> None:
    ran = run("connect")
    assert (ran.code, ran.err) == (0, "")
    assert [line.split()[0] for line in ran.out.splitlines()[:3]] == ["CLIENT", "claude-code", "claude-desktop"]


def test_it_prints_the_text_for_all_agents_or_for_one(asking: Command, gateway: Program) -> None:
    of_all = asking("connect", "cursor")
    one = asking("connect", "python", "tech_research")
    model = asking("connect", "openai", "echo")
    assert json.loads(of_all.out) == {"mcpServers": {"pallas": {"url": f"{gateway.url}/mcp"}}}
    assert "Or open: cursor://anysphere.cursor-deeplink/mcp/install?name=pallas&config=" in of_all.err
    assert f'Client("{gateway.url}/agents/tech_research/mcp")' in one.out
    assert 'call_tool("send_message"' in one.out
    assert f'OpenAI(base_url="{gateway.url}/v1"' in model.out
    assert 'model="echo"' in model.out


def test_an_agent_in_place_of_the_client_gives_the_right_order(run: Command) -> None:
    alone, swapped = run("connect", "concierge"), run("connect", "concierge", "cursor")
    assert (alone.code, swapped.code) == (2, 2)
    assert alone.err.endswith(
        " If 'concierge' is an agent, name it after the client: `connect claude-code concierge`.\n"
    )
    assert swapped.err.endswith(": `connect cursor concierge`.\n")


def test_an_unknown_client_or_agent_is_bad_usage(asking: Command) -> None:
    client, agent = asking("connect", "cursr"), asking("connect", "cursor", "ech")
    assert (client.code, agent.code) == (2, 2)
    assert client.err.startswith("No client 'cursr' (did you mean 'cursor'?). There are: claude-code, ")
    assert agent.err.startswith("No agent 'ech' (did you mean 'echo'?)")
