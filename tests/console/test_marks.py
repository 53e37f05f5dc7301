"""Marks of agents: an icon or initials, and a colour of its own wherever an agent is named, in a real browser."""

from collections.abc import AsyncGenerator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Locator, Page, expect

from tests.console.pages import Pages, findings
from tests.console.talking import Talking, answered, chat, log, talking, tool

pytestmark = pytest.mark.asyncio(loop_scope="session")

INSIDE = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 1 1'%3E%3Cpath d='M0 0h1z'/%3E%3C/svg%3E"
)
OF_AGENTS: dict[str, dict[str, Any]] = {
    "left": {"icon": INSIDE},
    "right": {"icons": [{"src": "https://icons.example/right.png"}]},
    "leaf": {"icon": "data:image/png;base64,AAAA"},
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def talk(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Talking]:
    async with talking(tmp_path_factory.mktemp("marks"), of_agents=OF_AGENTS) as made:
        yield made


def mark(page: Page, title: str) -> Locator:
    agents = page.get_by_role("listitem")
    return agents.filter(has=page.get_by_role("link", name=title, exact=True)).locator(".mark")


async def colour_of(element: Locator, key: str = "color") -> str:
    return str(await element.evaluate("(element, key) => getComputedStyle(element)[key]", key))


async def test_icons_in_their_urls_are_shown_and_others_are_initials_that_request_nothing(
    talk: Talking, pages: Pages
) -> None:
    page = await pages.open(talk.base_url)
    await expect(mark(page, "Left").locator("img")).to_have_attribute("src", INSIDE)
    for title, initials in (("Right", "R"), ("Leaf", "L"), ("Root", "R")):  # that of leaf is no image
        await expect(mark(page, title)).to_have_attribute("data-initials", initials)
        await expect(mark(page, title).locator("img")).to_have_count(0)


@pytest.mark.journey
@pytest.mark.needs("console-tools")
async def test_who_speaks_in_a_nested_call_has_its_colour_in_name_and_line(talk: Talking, pages: Pages) -> None:
    page = await chat(pages, talk, "root", "go")
    await answered(page, "leaf heard go.l.x")
    called = tool(log(page), "left/send_message")
    first = called.locator(".turn-card").first
    nested = tool(called, "leaf/send_message").locator(".turn-card").first
    colours = []
    for turn, name in ((first, "Left"), (nested, "Leaf")):
        who = turn.locator(":scope > .turn-head > .speaker")
        await expect(who).to_have_text(name)
        colours.append(await colour_of(who))
        assert await colour_of(turn, "borderLeftColor") == colours[-1]
    root = log(page).get_by_role("heading", name="Root")
    assert len({*colours, await colour_of(root)}) == 3
    await page.goto(f"{talk.base_url}/console/#/calls")
    ended = page.get_by_role("table", name="Ended calls").get_by_role("rowheader", name="leaf").first
    assert await colour_of(ended.locator(".speaker")) == colours[1]
    assert await findings(page) == []  # it leaves the page dark
    await page.emulate_media(color_scheme="light")
    await page.goto(f"{talk.base_url}/console/#/agents/leaf/details")
    await expect(page.locator(".heading .mark")).to_have_attribute("data-initials", "L")
    assert await colour_of(page.locator(".heading .mark"), "backgroundColor") == colours[1]
