"""The view of all agents, in a real browser before a real gateway."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from pallas_gateway.core.agent_state import State
from tests.console.pages import Pages, findings
from tests.support.downstreams import stateless_downstream
from tests.support.gateway import Agent, Running, limited, running, write_project

pytestmark = pytest.mark.asyncio(loop_scope="session")

AGENTS = {
    "echo": Agent(settings={"title": "Echo <b>bold</b>", "description": "Repeats what it reads."}),
    "broken": Agent(source="raise ValueError('no key')\n"),
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Running]:
    async with running(write_project(tmp_path_factory.mktemp("console"), AGENTS)) as gateway:
        yield gateway


async def focus(page: Page) -> None:
    """Have a page that waits for its next round get the focus."""
    await expect(page.get_by_text("Checked at")).to_be_visible()
    await page.evaluate("window.dispatchEvent(new Event('focus'))")


@pytest.mark.journey
async def test_each_agent_is_a_link_with_its_state_and_reason(served: Running, pages: Pages) -> None:
    page = await pages.open(served.base_url)
    cards = page.get_by_role("listitem")
    echo = cards.filter(has=page.get_by_role("link", name="Echo <b>bold</b>", exact=True))
    broken = cards.filter(has=page.get_by_role("link", name="Broken", exact=True))

    await expect(echo.get_by_text("ok", exact=True)).to_be_visible()
    await expect(echo.get_by_text("Repeats what it reads.")).to_be_visible()
    await expect(echo.get_by_role("definition").filter(has_text="passthrough")).to_be_visible()
    await expect(broken.get_by_text("error", exact=True)).to_be_visible()
    await expect(broken.get_by_text("no key")).to_be_visible()


async def test_an_agent_may_have_a_name_that_every_object_has(tmp_path: Path, pages: Pages) -> None:
    async with running(write_project(tmp_path, {"constructor": Agent()})) as served:
        page = await pages.open(served.base_url)
        card = page.get_by_role("listitem").filter(has=page.get_by_role("link", name="Constructor", exact=True))
        await expect(card.get_by_text("ok", exact=True)).to_be_visible()
        await expect(card.get_by_text("Last call")).to_have_count(0)
        await pages.close()  # it may be loading views ahead


@pytest.mark.needs("console-tools")
async def test_the_agents_are_accessible_and_fit_a_narrow_screen(served: Running, pages: Pages) -> None:
    page = await pages.open(served.base_url, narrow=True)
    await expect(page.get_by_text("error", exact=True)).to_be_visible()
    assert await findings(page) == []
    assert await page.evaluate("document.documentElement.scrollWidth") <= 360


async def test_the_search_and_the_arrow_keys_find_an_agent(served: Running, pages: Pages) -> None:
    page = await pages.open(served.base_url)
    await expect(page.get_by_text("Checked at")).to_be_visible()  # the agent in error is first then
    search = page.get_by_role("searchbox", name="Search agents")
    await search.fill("repeats")
    await expect(page.get_by_role("listitem")).to_have_count(1)
    await search.fill("nothing like it")
    await expect(page.get_by_text("No agent matches “nothing like it”.")).to_be_visible()
    await search.fill("")
    await search.press("ArrowDown")
    await page.keyboard.press("ArrowDown")
    await expect(page.get_by_role("link", name="Echo <b>bold</b>", exact=True)).to_be_focused()
    await page.keyboard.press("ArrowUp")
    await expect(page.get_by_role("link", name="Broken", exact=True)).to_be_focused()
    await page.keyboard.press("ArrowDown")
    await page.keyboard.press("Enter")
    await expect(page).to_have_title("Echo <b>bold</b> - test - Pallas Gateway")


async def test_an_agent_that_starts_is_ok_soon_after_it_is_up(served: Running, pages: Pages) -> None:
    agent = served.gateway.agents["echo"]
    runtime = agent.runtime
    agent.set_state(State.STARTING)
    page = await pages.open(served.base_url)
    await expect(page.get_by_text("starting", exact=True)).to_be_visible()
    agent.set_state(State.READY, runtime=runtime)
    await expect(page.get_by_text("ok", exact=True)).to_be_visible()  # long before the next round of a minute


@pytest.mark.needs("console-tools")
async def test_a_downstream_that_stops_and_comes_back_turns_the_badge(tmp_path: Path, pages: Pages) -> None:
    with limited() as limits:
        limits.gateway.health.fresh_seconds = 0
        async with stateless_downstream() as notes:
            servers = {"notes": {"transport": "http", "url": notes.url}}
            async with running(write_project(tmp_path, {"echo": Agent(servers=["notes"])}, servers=servers)) as served:
                page = await pages.open(served.base_url)
                await expect(page.get_by_text("ok", exact=True).first).to_be_visible()
                await notes.stop()
                await focus(page)
                await expect(page.get_by_text("degraded", exact=True)).to_be_visible()
                await expect(page.get_by_text("Unreachable: notes")).to_be_visible()
                await page.get_by_text("1 server, 1 unreachable").click()
                await expect(page.get_by_role("row", name="notes unreachable")).to_be_visible()
                assert await findings(page) == []
                await notes.start()
                await focus(page)
                await expect(page.get_by_role("row", name="notes ok")).to_be_visible()
