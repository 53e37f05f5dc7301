"""The first page in a real browser: the box to ask any agent, the running calls, and agents with problems first."""

import re
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Locator, Page, expect

from pallas_gateway.identity.static_keys import hash_of
from tests.console.pages import SCHEMES, Pages, enter, findings
from tests.console.talking import Talking, answered, send, talking
from tests.support.gateway import Agent, running, write_project

pytestmark = pytest.mark.asyncio(loop_scope="session")

OF_AGENTS: dict[str, dict[str, Any]] = {
    "root": {"title": "The root", "description": "Asks all others.", "examples": ["go", "What <b>is</b> new?"]},
    "leaf": {"examples": ["rustle"]},
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def talk(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Talking]:
    async with talking(tmp_path_factory.mktemp("front"), of_agents=OF_AGENTS) as made:
        yield made


def box(page: Page) -> Locator:
    return page.get_by_role("textbox", name="Ask an agent")


def chosen(page: Page) -> Locator:
    return page.get_by_role("combobox", name="Agent")


def running_calls(page: Page) -> Locator:
    return page.get_by_role("region", name="Running now")


async def titles(page: Page) -> list[str]:
    return await page.get_by_role("listitem").get_by_role("heading").all_text_contents()


@pytest.mark.journey
async def test_a_message_is_sent_to_the_chosen_agent_in_a_conversation_of_its_own(talk: Talking, pages: Pages) -> None:
    page = await pages.open(talk.base_url, "#/agents/leaf")
    await send(page, "earlier")
    await answered(page, "leaf heard earlier")
    await page.get_by_role("link", name="Agents", exact=True).click()
    await chosen(page).select_option("leaf")
    await page.get_by_role("button", name="rustle", exact=True).click()
    await expect(box(page)).to_have_value("rustle")
    await expect(box(page)).to_be_focused()
    await page.get_by_role("button", name="Ask", exact=True).click()
    await answered(page, "leaf heard rustle")
    await expect(page).to_have_title("Leaf - test - Pallas Gateway")
    await expect(page.get_by_role("log")).not_to_contain_text("earlier")
    await page.get_by_role("link", name="Agents", exact=True).click()
    await expect(box(page)).to_have_value("")


@pytest.mark.needs("console-tools")
async def test_an_agent_is_chosen_by_its_name_with_the_keyboard(talk: Talking, pages: Pages) -> None:
    page = await pages.open(talk.base_url)
    await expect(page.get_by_role("button", name="What <b>is</b> new?")).to_be_visible()
    await box(page).fill("@")
    options = page.get_by_role("listbox", name="Agents").get_by_role("option")
    await expect(options.filter(has_text="@root")).to_be_visible()
    await expect(options.filter(has_text="@broken")).to_have_count(0)
    await box(page).fill("@l")
    await expect(options).to_have_count(2)  # left and leaf
    await expect(options.first).to_have_attribute("aria-selected", "true")
    assert await findings(page) == []
    await page.keyboard.press("ArrowDown")
    await expect(options.nth(1)).to_have_attribute("aria-selected", "true")
    await page.keyboard.press("Escape")
    await expect(options).to_have_count(0)
    await box(page).fill("@lea")
    await page.keyboard.press("Enter")
    await expect(chosen(page)).to_have_value("leaf")
    await expect(box(page)).to_have_value("")
    await page.keyboard.type("@root and then")
    await expect(chosen(page)).to_have_value("root")
    await expect(box(page)).to_have_value("and then")
    await box(page).fill("@leaf by keys")
    await page.keyboard.press("Enter")
    await answered(page, "leaf heard by keys")


async def test_agents_that_take_no_messages_are_not_offered_and_say_why(talk: Talking, pages: Pages) -> None:
    page = await pages.open(talk.base_url)
    broken = chosen(page).get_by_role("option", name=re.compile("Broken"))
    await expect(broken).to_be_disabled()
    await expect(broken).to_contain_text("(error: ")
    await expect(chosen(page).get_by_role("option", name="Weak", exact=True)).to_be_enabled()


async def test_agents_with_problems_are_first_with_the_reason_and_what_it_means(talk: Talking, pages: Pages) -> None:
    page = await pages.open(talk.base_url)
    await expect(page.get_by_text("Checked at")).to_be_visible()
    assert (await titles(page))[:3] == ["Broken", "Weak", "The root"]
    broken, weak = page.get_by_role("listitem").nth(0), page.get_by_role("listitem").nth(1)
    await expect(broken).to_contain_text("the key is missing")
    await expect(broken).to_contain_text("It takes no messages.")
    await expect(weak).to_contain_text("Unreachable: gone")
    await expect(weak).to_contain_text("It takes messages, and its answers may lack what cannot be reached.")


@pytest.mark.needs("console-tools")
async def test_running_calls_are_shown_below_their_parents_and_are_gone_when_they_end(
    talk: Talking, pages: Pages
) -> None:
    page = await pages.open(talk.base_url)
    await expect(box(page)).to_be_visible()
    await expect(running_calls(page)).to_have_count(0)
    other = await pages.another(page.context, talk.base_url, "#/agents/left")
    await send(other, "hang")
    await page.bring_to_front()
    calls = running_calls(page).get_by_role("link")
    await expect(calls).to_have_count(2)
    await expect(calls.nth(0)).to_contain_text("left")
    await expect(calls.nth(1)).to_contain_text("nested call of leaf")
    assert await findings(page) == []
    await other.get_by_role("button", name="Stop").click()
    await expect(running_calls(page)).to_have_count(0)
    leaf = page.get_by_role("listitem").filter(has=page.get_by_role("link", name="Leaf", exact=True))
    await expect(leaf.get_by_role("definition").filter(has_text="just now")).to_be_visible()
    await send(other, "hang")
    await calls.first.click()
    await expect(page.get_by_role("heading", name="Calls", exact=True)).to_be_visible()
    await other.get_by_role("button", name="Stop").click()


async def test_the_dot_of_running_calls_does_not_move_for_those_who_want_no_motion(talk: Talking, pages: Pages) -> None:
    page = await pages.open(talk.base_url, reduced_motion="reduce")
    await expect(box(page)).to_be_visible()
    other = await pages.another(page.context, talk.base_url, "#/agents/left")
    await send(other, "hang")
    dot = running_calls(page).locator(".dot")
    await expect(dot).to_have_css("animation-name", "none")
    await page.emulate_media(reduced_motion="no-preference")
    await expect(dot).to_have_css("animation-name", "breathe")
    await other.get_by_role("button", name="Stop").click()


@pytest.mark.needs("console-tools")
@pytest.mark.parametrize("count", [1, 50])
async def test_the_page_holds_its_layout_with_few_and_many_agents(count: int, tmp_path: Path, pages: Pages) -> None:
    agents = {f"agent-{number}": Agent() for number in range(count)}
    async with running(write_project(tmp_path, agents)) as served:
        page = await pages.open(served.base_url, narrow=True)
        await expect(page.get_by_text("ok", exact=True)).to_have_count(count)
        await expect(box(page)).to_be_visible()
        assert await page.evaluate("document.documentElement.scrollWidth") <= 360
        for scheme in SCHEMES:
            await page.emulate_media(color_scheme=scheme)
            small = await page.evaluate(SMALL)
            assert small == [], small
        assert await findings(page) == []
        await page.set_viewport_size({"width": 1280, "height": 800})
        await page.reload()
        top = page.get_by_role("heading", name="Agents", exact=True)
        await expect(top).to_be_visible()
        before = await top.bounding_box()
        await expect(box(page)).to_be_visible()
        await expect(page.get_by_text("ok", exact=True)).to_have_count(count)
        assert await top.bounding_box() == before
        await page.close()


SMALL = """() => [...document.querySelectorAll('main :is(a, button, select, input, summary), header :is(a, button)')]
  .filter((one) => one.checkVisibility() && !one.closest('.unseen') && !one.matches('h2 > a'))
  .filter((one) => one.getBoundingClientRect().height < 24)
  .map((one) => one.outerHTML.slice(0, 100))"""


async def test_who_may_list_no_calls_asks_for_none_and_who_may_run_nothing_is_told(
    tmp_path: Path, pages: Pages
) -> None:
    keys = [
        {"name": "viewer", "sha256": hash_of("viewer-secret"), "grants": ["view:agents"]},
        {"name": "runner", "sha256": hash_of("runner-secret"), "grants": ["run:agents:echo", "view:agents"]},
    ]
    auth = {"tokens": keys, "registry": "filtered", "anonymous": ["view:agents"]}
    project = write_project(tmp_path, {"echo": Agent(), "other": Agent()}, gateway={"auth": auth})
    async with running(project) as served:
        page = await pages.open(served.base_url)
        requested: list[str] = []
        page.on("request", lambda request: requested.append(request.url))
        await expect(page.get_by_text("No agent takes messages now.")).to_be_visible()
        await expect(box(page)).to_be_disabled()
        assert not any("/api/v1/calls" in url for url in requested)
        async with page.expect_request("**/api/v1/calls"):
            await enter(page, "viewer-secret")
        option = chosen(page).get_by_role("option", name=re.compile("Echo"))
        await expect(option).to_contain_text("You may see this agent, and not run it")
        await expect(option).to_be_disabled()
        await enter(page, "runner-secret")
        await expect(option).to_be_enabled()
        await expect(chosen(page).get_by_role("option", name=re.compile("Other"))).to_be_disabled()
        await box(page).fill("for echo")
        await page.get_by_role("button", name="Ask", exact=True).click()
        await answered(page, "for echo")
        await page.close()


async def test_who_is_not_known_is_told_how_to_be_known(tmp_path: Path, pages: Pages) -> None:
    pages.expected.append("status of 401")
    keys = [{"name": "runner", "sha256": hash_of("runner-secret"), "grants": ["run:agents"]}]
    async with running(write_project(tmp_path, {"echo": Agent()}, gateway={"auth": {"tokens": keys}})) as served:
        page = await pages.open(served.base_url)
        await page.get_by_role("dialog", name="Sign in to").get_by_role("button", name="Cancel").click()
        await expect(page.get_by_text("The gateway has to know who you are. Use a key.")).to_be_visible()
        await expect(box(page)).to_be_disabled()
        await expect(chosen(page)).to_have_count(0)
        await enter(page, "runner-secret")
        await expect(box(page)).to_be_enabled()
        await expect(chosen(page)).to_be_visible()
        await page.close()


@pytest.mark.needs("console-tools")
async def test_without_agents_there_is_no_box(tmp_path: Path, pages: Pages) -> None:
    auth = {"tokens": [{"name": "idle", "sha256": hash_of("idle"), "grants": []}], "registry": "filtered"}
    async with running(write_project(tmp_path, {"echo": Agent()}, gateway={"auth": auth})) as served:
        page = await pages.open(served.base_url)
        unknown = "The agents of this gateway are shown once it knows who you are. Use a key."
        await expect(page.get_by_text(unknown)).to_be_visible()
        await expect(box(page)).to_have_count(0)
        assert await findings(page) == []
        await page.close()


async def test_a_message_that_cannot_be_sent_stays_in_the_box(talk: Talking, pages: Pages) -> None:
    pages.expected.append("Failed to load resource")
    page = await pages.open(talk.base_url)
    await expect(box(page)).to_be_visible()
    await page.route("**/session.js", lambda route: route.abort())
    await box(page).fill("kept")
    await page.get_by_role("button", name="Ask", exact=True).click()
    await expect(page.get_by_role("alert")).to_contain_text("The message was not sent: ")
    await expect(box(page)).to_have_value("kept")
