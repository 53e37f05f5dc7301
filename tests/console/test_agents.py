"""The view of all agents, in a real browser before a real gateway."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pytest
import pytest_asyncio
from playwright.async_api import expect

from tests.console.pages import findings
from tests.support.gateway import Agent, Running, running, write_project

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from tests.console.pages import Pages

pytestmark = pytest.mark.asyncio(loop_scope="session")

AGENTS = {
    "echo": Agent(settings={"title": "Echo <b>bold</b>", "description": "Repeats what it reads."}),
    "broken": Agent(source="raise ValueError('no key')\n"),
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Running]:
    async with running(write_project(tmp_path_factory.mktemp("console"), AGENTS)) as gateway:
        yield gateway


async def test_each_agent_is_a_link_with_its_state_and_reason(served: Running, pages: Pages) -> None:
    page = await pages.open(served.base_url)
    cards = page.get_by_role("listitem")
    echo = cards.filter(has=page.get_by_role("link", name="Echo <b>bold</b>", exact=True))
    broken = cards.filter(has=page.get_by_role("link", name="Broken", exact=True))

    await expect(echo.get_by_text("ok", exact=True)).to_be_visible()
    await expect(echo.get_by_text("Repeats what it reads.")).to_be_visible()
    await expect(broken.get_by_text("error", exact=True)).to_be_visible()
    await expect(broken.get_by_text("no key")).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_the_agents_are_accessible_and_fit_a_narrow_screen(
    served: Running, pages: Pages, scheme: Literal["light", "dark"]
) -> None:
    page = await pages.open(served.base_url, scheme=scheme, narrow=True)
    await expect(page.get_by_text("error", exact=True)).to_be_visible()
    assert await findings(page) == []
    assert await page.evaluate("document.documentElement.scrollWidth") <= 360
