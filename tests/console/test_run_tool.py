"""“Run this tool” in the details of an agent, in a real browser before real downstreams."""

import base64
import re
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from mcp_types import ImageContent, TextContent
from playwright.async_api import Locator, Page, expect

from pallas_gateway.identity.caller import ANONYMOUS
from pallas_gateway.identity.static_keys import hash_of
from tests.console.pages import Pages, enter, findings
from tests.support.asking import Asking, asking_downstream
from tests.support.downstreams import StatelessDownstream, stateless_downstream
from tests.support.gateway import Agent, Running, running, until_idle, write_project
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

PIXEL = base64.b64encode(
    bytes.fromhex(
        "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360f8cf"
        "c0f01f0005050201a05b7d0b0000000049454e44ae426082"
    )
).decode()
HOSTILE = "<img src=x onerror=alert(1)>"
SETTINGS = {"approve": ["asking/wipe"]}


class World:
    """A gateway whose agent `lead` has the downstreams `notes` and `asking`."""

    def __init__(self, served: Running, notes: StatelessDownstream, asking: Asking) -> None:
        self.served = served
        self.notes = notes
        self.asking = asking

    async def tool(self, pages: Pages, server: str, tool: str, **options: Any) -> tuple[Page, Locator]:
        page = await pages.open(self.served.base_url, "#/agents/lead/details", **options)
        return page, await opened(page, f"Tools of {server}", tool)


async def opened(page: Page, region: str, tool: str) -> Locator:
    tools = page.get_by_role("region", name=region)
    await tools.get_by_text(tool, exact=True).first.click()
    await tools.get_by_role("button", name="Run this tool").click()
    return tools


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[World]:
    async with stateless_downstream() as notes, asking_downstream("modern") as asking:

        @notes.server.tool
        def draw(shape: dict[str, Any], points: list[int] | None = None) -> list[TextContent | ImageContent]:
            """Draw a shape."""
            text = TextContent(type="text", text=f"{shape['name']} {points} {HOSTILE}")
            return [text, ImageContent(type="image", data=PIXEL, mime_type="image/png")]

        servers = {"notes": {"url": notes.url}, "asking": {"url": asking.url}}
        agents = {"lead": Agent([*servers], settings={"title": "Lead", **SETTINGS})}
        async with running(write_project(tmp_path_factory.mktemp("run"), agents, servers=servers)) as served:
            runtime = served.gateway.agents["lead"].runtime
            assert runtime is not None
            await eventually(lambda: all(one.tools for one in runtime.server_tools(ANONYMOUS)), what="the listings")
            yield World(served, notes, asking)


@pytest.mark.journey
@pytest.mark.needs("console-tools")
async def test_a_form_runs_a_tool_and_shows_its_result(world: World, pages: Pages) -> None:
    page, tools = await world.tool(pages, "notes", "add")
    form = tools.get_by_role("form", name="Run add")
    await form.get_by_role("button", name="Run", exact=True).click()
    await expect(form.get_by_text("This field is required.").first).to_be_visible()
    await expect(form.get_by_label("A (required)")).to_be_focused()
    await page.keyboard.type("2")
    await page.keyboard.press("Tab")
    await page.keyboard.type("3")
    await page.keyboard.press("Enter")
    card = tools.get_by_role("group", name="notes/add")
    await expect(card.get_by_role("group", name="Result")).to_have_text("5")
    await expect(form.get_by_role("status")).to_have_text(re.compile(r"The tool has answered after .+"))
    await tools.get_by_text("Structured content").click()
    await expect(tools.get_by_role("group", name="Structured content")).to_contain_text('"result": 5')
    assert await findings(page) == []

    await page.get_by_role("link", name="Chat", exact=True).click()  # the arguments stay while other views are shown
    await expect(page.get_by_role("textbox", name="Message")).to_be_visible()
    await page.goto(f"{world.served.base_url}/console/#/agents/lead/details")
    await page.get_by_role("region", name="Tools of notes").get_by_text("add", exact=True).click()
    await expect(form.get_by_label("B (required)")).to_have_value("3")
    await form.get_by_label("B (required)").fill("40")
    await form.get_by_role("button", name="Run again").click()
    await expect(card.get_by_role("group", name="Result")).to_have_text("42")


async def test_an_error_of_the_tool_is_shown_as_one(world: World, pages: Pages) -> None:
    _, tools = await world.tool(pages, "notes", "fail")
    await tools.get_by_label("Message (required)").fill(f"no room {HOSTILE}")
    await tools.get_by_role("button", name="Run", exact=True).click()
    card = tools.get_by_role("group", name="notes/fail")
    await expect(card.get_by_text("failed", exact=True)).to_be_visible()
    await expect(card.get_by_role("group", name="Result")).to_contain_text(f"no room {HOSTILE}")


async def test_arguments_as_json_are_checked_by_the_server(world: World, pages: Pages) -> None:
    _, tools = await world.tool(pages, "notes", "add")
    await tools.get_by_role("button", name="Write the arguments as JSON").click()
    box = tools.get_by_label("Arguments as JSON")
    await box.fill("[1]")
    await tools.get_by_role("button", name="Run", exact=True).click()
    await expect(tools.get_by_text("This is not a JSON object")).to_be_visible()
    await box.fill('{"a": "two"}')
    await tools.get_by_role("button", name="Run", exact=True).click()
    await expect(tools.get_by_role("group", name="Result")).to_contain_text("valid")


@pytest.mark.needs("console-tools")
async def test_objects_are_written_as_json_and_images_are_shown(world: World, pages: Pages) -> None:
    page, tools = await world.tool(pages, "notes", "draw", narrow=True)
    await tools.get_by_label("Shape (required)").fill('{"name": "circle"}')
    await tools.get_by_label("Points").fill("[1, 2]")
    await tools.get_by_role("button", name="Run", exact=True).click()
    await expect(tools.get_by_role("group", name="Result")).to_have_text(f"circle [1, 2] {HOSTILE}")
    await expect(tools.get_by_role("img", name="Image 1")).to_be_visible()
    assert await findings(page) == []
    assert await page.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.needs("console-tools")
async def test_a_tool_under_approval_runs_after_the_arguments_were_allowed_once(world: World, pages: Pages) -> None:
    pages.expected.append("status of 409")
    page, tools = await world.tool(pages, "asking", "wipe")
    await tools.get_by_label("Path").fill("/home/\u202eanna")
    await tools.get_by_role("button", name="Run", exact=True).click()
    dialog = page.get_by_role("dialog", name="May the tool asking/wipe run with these arguments?")
    await expect(dialog.get_by_role("group", name="Arguments")).to_contain_text('"path": "/home/⟨U+202E⟩anna"')
    await expect(dialog.get_by_role("button", name="Allow for this call")).to_have_count(0)
    assert await findings(page) == []
    await dialog.get_by_role("button", name="Decline").click()
    await expect(dialog).to_have_count(0)
    assert world.asking.recorder.calls("wipe") == []
    await tools.get_by_role("button", name="Run", exact=True).click()
    await dialog.get_by_role("button", name="Allow once").focus()
    await page.keyboard.press("Enter")
    await expect(tools.get_by_role("group", name="Result")).to_contain_text("wiped /home/")
    assert len(world.asking.recorder.calls("wipe")) == 1


async def test_a_running_tool_can_be_stopped(world: World, pages: Pages) -> None:
    _, tools = await world.tool(pages, "notes", "slow")
    await tools.get_by_role("button", name="Run", exact=True).click()
    await world.notes.gate.wait_for_entered()
    await tools.get_by_role("button", name="Stop").click()
    await expect(tools.get_by_text("The call was stopped.")).to_be_visible()
    await world.notes.gate.wait_for_cancelled()
    await until_idle(world.served)


async def test_the_agents_own_tools_are_called_as_any_client_does(world: World, pages: Pages) -> None:
    page = await pages.open(world.served.base_url, "#/agents/lead/details")
    own = await opened(page, "Tools, as clients see them", "send_message")
    await own.get_by_label("Message (required)").fill("hello there")
    await own.get_by_role("button", name="Run", exact=True).click()
    await expect(own.get_by_role("group", name="send_message").get_by_role("group", name="Result")).to_have_text(
        "hello there"
    )


async def test_callers_that_may_not_run_the_agent_have_no_button(tmp_path: Path, pages: Pages) -> None:
    pages.expected.append("status of 401")
    keys = [{"name": name, "sha256": hash_of(name), "grants": [f"{name}:agents"]} for name in ("view", "run")]
    async with stateless_downstream() as notes:
        project = write_project(
            tmp_path,
            {"lead": Agent(["notes"])},
            servers={"notes": {"url": notes.url}},
            gateway={"auth": {"tokens": keys}, "console_run_tools": False},
        )
        async with running(project) as served:
            for token, own_buttons in (("view", 0), ("run", 1)):
                page = await pages.open(served.base_url, "#/agents/lead/details")
                await enter(page, token)
                tools = page.get_by_role("region", name="Tools of notes")
                await tools.get_by_text("add", exact=True).click()
                await expect(tools.get_by_role("group", name="Input schema of add")).to_be_visible()
                await expect(tools.get_by_role("button", name="Run this tool")).to_have_count(0)  # switched off
                own = page.get_by_role("region", name="Tools, as clients see them")
                await own.get_by_text("send_message", exact=True).click()
                await expect(own.get_by_role("group", name="Input schema of send_message")).to_be_visible()
                await expect(own.get_by_role("button", name="Run this tool")).to_have_count(own_buttons)
