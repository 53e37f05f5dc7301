"""The files that the console loads: few for its first view, the others when a view is opened."""

from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from tests.console.pages import Pages
from tests.support.gateway import Agent, running, write_project

pytestmark = pytest.mark.asyncio(loop_scope="session")

MOST_FILES = 15
MOST_BYTES = 50_000
DRAWN = "performance.getEntriesByName('agents drawn').length > 0"
LOADED = """(before) => [...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]
  .filter(({ name, startTime }) => new URL(name).pathname.includes('/console/') && startTime <= before)
  .map(({ name, encodedBodySize }) => [new URL(name).pathname, encodedBodySize])"""


async def files_of(page: Page, *, until_drawn: bool = False) -> dict[str, int]:
    """Return the sizes of the requested files, of all or of those that were requested until the agents were drawn."""
    await page.wait_for_function(DRAWN)
    drawn = await page.evaluate("performance.getEntriesByName('agents drawn')[0].startTime")
    return dict(await page.evaluate(LOADED, drawn if until_drawn else 1e9))


@pytest.mark.journey
async def test_the_agents_with_their_states_are_drawn_from_few_files(tmp_path: Path, pages: Pages) -> None:
    async with running(write_project(tmp_path, {"echo": Agent()})) as served:
        page = await pages.open(served.base_url)
        await expect(page.get_by_text("ok", exact=True)).to_be_visible()
        files = await files_of(page, until_drawn=True)
        assert len(files) <= MOST_FILES, sorted(files)
        assert all(files.values())
        assert sum(files.values()) <= MOST_BYTES, files
        await page.get_by_role("link", name="Echo", exact=True).click()
        await expect(page.get_by_role("textbox", name="Message")).to_be_visible()
        assert len(await files_of(page)) > MOST_FILES
        await page.close()


async def test_a_view_that_cannot_be_loaded_says_so(tmp_path: Path, pages: Pages) -> None:
    pages.expected.append("Failed to load resource")
    async with running(write_project(tmp_path, {"echo": Agent()})) as served:
        page = await pages.open(served.base_url)
        await expect(page.get_by_text("ok", exact=True)).to_be_visible()
        await page.route("**/views/*.js", lambda route: route.abort())
        await page.get_by_role("link", name="Connect", exact=True).click()
        await expect(page.get_by_role("alert")).to_contain_text("This view could not be loaded.")
        await expect(page.get_by_role("button", name="Reload the page")).to_be_visible()
        await page.unroute("**/views/*.js")
        await page.evaluate("window.dispatchEvent(new Event('focus'))")  # a round that the gateway answers
        await expect(page.get_by_role("heading", name="Connect")).to_be_visible()
        await page.close()
