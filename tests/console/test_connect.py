"""Texts that connect other programs: in the console, at the terminal, and in docs/use/connect.md."""

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import pytest_asyncio
import yaml
from playwright.async_api import Page, expect

from pallas_gateway.client.connect import Target, programs
from pallas_gateway.identity.static_keys import hash_of
from tests.conformance.conformance import PROGRAMS
from tests.console.pages import Pages, findings, shows_copied
from tests.support.gateway import Agent, Running, running, write_project
from tests.support_programs import program as installed

KEY = "pgw_key-of-notes"
RUNS = {
    "python": (sys.executable, "program"),
    "typescript": ("node", "program.mjs"),
    "openai": (sys.executable, "program"),
    "curl": ("sh", "program"),
}
NEEDED = {"typescript": ["typescript"], "curl": ["curl"]}
HOSTILE = "http://h/'; rm -rf ~; '\"\\`<x>{1}\n/mcp"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Running]:
    agents = {"echo": Agent(), "tech_notes": Agent(settings={"title": "Notes"})}
    keys = [{"name": "notes", "sha256": hash_of(KEY), "grants": ["run:agents:tech_notes"]}]
    auth = {"tokens": keys, "anonymous": ["view:agents", "run:agents:echo"]}
    gateway_settings = {"auth": auth, "tool_names": ["ask"], "openai_api": True}
    project = write_project(tmp_path_factory.mktemp("connect"), agents, gateway=gateway_settings)
    async with running(project) as gateway:
        yield gateway


async def shown(page: Page) -> dict[str, str]:
    cards = await page.get_by_role("listitem").all()
    return {await card.get_by_role("heading").inner_text(): await card.locator("code").inner_text() for card in cards}


def texts(target: Target) -> dict[str, str]:
    return {client.title: client.filled(target) for client in programs()}


@pytest.mark.journey
@pytest.mark.asyncio(loop_scope="session")
async def test_the_console_shows_the_texts_of_the_chosen_server(served: Running, pages: Pages) -> None:
    base = served.gateway.configuration.public_base_url
    page = await pages.open(served.base_url, "#/connect", permissions=["clipboard-read", "clipboard-write"])
    await expect(page.get_by_role("listitem")).to_have_count(len(programs()))
    of_all = await shown(page)
    await page.get_by_label("Connect to").select_option("Echo")
    await expect(page.get_by_text('call_tool("ask"')).to_be_visible()
    of_echo = await shown(page)
    link = await page.get_by_role("link", name="Add to Cursor").get_attribute("href")
    async with shows_copied(page, "Copied the text for Claude Code"):
        await page.get_by_role("button", name="Copy the text for Claude Code").click()
    copied = await page.evaluate("navigator.clipboard.readText()")
    await page.get_by_label("Connect to").select_option("Notes")
    await expect(page.get_by_text("/agents/tech_notes/mcp").first).to_be_visible()
    await expect(page.get_by_text('call_tool("ask"')).to_be_visible()  # its tool is known a moment later
    of_notes = await shown(page)

    echo = Target("echo", f"{base}/agents/echo/mcp", base, "ask")
    notes = Target("tech_notes", f"{base}/agents/tech_notes/mcp", base, "ask", needs_token=True)
    assert of_echo == texts(echo)
    assert of_notes == texts(notes)
    assert copied == texts(echo)["Claude Code"]
    assert link == next(client for client in programs() if client.id == "cursor").link_to(echo)
    all_at_once = texts(Target("pallas", f"{base}/mcp", base, "agent-echo", needs_token=True))
    assert {name: text for name, text in of_all.items() if name != "OpenAI clients"} == {
        name: text for name, text in all_at_once.items() if name != "OpenAI clients"
    }


@pytest.mark.needs("console-tools")
@pytest.mark.asyncio(loop_scope="session")
async def test_the_view_is_accessible_and_fits_a_narrow_screen(served: Running, pages: Pages) -> None:
    page = await pages.open(served.base_url, "#/connect", narrow=True)
    await expect(page.get_by_role("listitem")).to_have_count(len(programs()))
    assert await findings(page) == []
    assert await page.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.parametrize("needs_token", [False, True])
def test_configurations_are_json_and_programs_are_python(needs_token: bool) -> None:
    target = Target("a_b", "http://localhost:1/agents/a_b/mcp", "http://localhost:1", needs_token=needs_token)
    for client in programs():
        text = client.filled(target)
        assert any(one in text for one in ("TOKEN", "${input:", "PALLAS_BEARER")) == needs_token
        assert not {"<NAME>", "<URL>", "<BASE>", "<TOOL>"} & set(text.split())
        if client.language == "json":
            json.loads(text)
        if client.language == "yaml":
            assert yaml.safe_load(text)["mcpServers"][0]["url"] == target.url
        if client.language == "python":
            compile(text, client.id, "exec")


def test_the_name_of_another_registrys_agent_is_no_option_of_a_command() -> None:
    [claude] = [client for client in programs() if client.id == "claude-code"]
    for name, word in (("--env", "env"), ("'-'", "agent"), ("-1", "1")):
        assert f" {word} '" in claude.filled(Target(name, "http://h/mcp", "http://h"))


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.needs(*NEEDED.get(name, ()))) for name in RUNS])
async def test_the_programs_run_as_they_are_shown(name: str, served: Running, tmp_path: Path) -> None:
    program, file = RUNS[name]
    if program == "node":
        program = installed("typescript")
        (tmp_path / "node_modules").symlink_to(PROGRAMS)
    [client] = [one for one in programs() if one.id == name]
    targets = (
        Target("echo", served.url("echo"), served.base_url, "ask"),
        Target("tech_notes", served.url("tech_notes"), served.base_url, "ask", needs_token=True),
    )
    # OpenAI's package always sends a key, and a gateway with keys refuses one that it does not know.
    for target in targets[name == "openai" :]:
        (tmp_path / file).write_text(client.filled(target).replace("TOKEN", KEY))
        environ = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
        run = await asyncio.create_subprocess_exec(program, file, cwd=tmp_path, env=environ, stdout=PIPE, stderr=PIPE)
        out, err = await run.communicate()
        assert (run.returncode, "Hello" in out.decode()) == (0, True), (out, err)


def test_a_hostile_url_stays_within_its_quotes() -> None:
    target = Target("x'; rm", HOSTILE, HOSTILE, "y`z")
    for client in programs():
        text = client.filled(target)
        assert "%27" in text
        assert not any(part in text for part in ("rm -rf", "'; rm", "<x>", "{1}", "y`z"))
