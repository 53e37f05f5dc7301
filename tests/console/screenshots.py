"""Takes the pictures of the console for the documentation: `make screenshots`.

The example agents answer in them, so they need no key.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from playwright.async_api import async_playwright, expect

from tests.console.conftest import launched
from tests.console.pages import WIDE
from tests.support.commands import started

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"


async def shoot(browser: Browser, url: str, name: str, view: str) -> None:
    context = await browser.new_context(color_scheme="light", viewport=WIDE)
    page = await context.new_page()
    await page.goto(f"{url}/console/{view}")
    await _PREPARE[name](page)
    await page.screenshot(path=IMAGES / f"{name}.png")
    await context.close()


async def _agents(page: Page) -> None:
    agents = page.get_by_role("listitem")
    await expect(agents).not_to_have_count(0)
    for agent in await agents.all():
        await expect(agent.get_by_text("ok", exact=True).first).to_be_visible()
    await expect(page.get_by_text("Checked at")).to_be_visible()


async def _chat(page: Page) -> None:
    await page.get_by_role("textbox", name="Message").fill("What is a peer?")
    await page.get_by_role("button", name="Send").click()
    await expect(page.get_by_role("button", name="Retry")).to_be_enabled(timeout=60_000)


async def _gateway(page: Page) -> None:
    await expect(page.get_by_text("Configuration loaded")).to_be_visible()
    await expect(page.get_by_role("group", name="Graph").locator("text", has_text="library")).to_be_visible(
        timeout=30_000
    )


async def _calls(page: Page) -> None:
    """Open the call of the chat."""
    calls = page.get_by_role("table", name="Ended calls").get_by_role("row")
    await calls.filter(has=page.get_by_role("rowheader", name="concierge")).get_by_role("button").first.click()
    await expect(page.get_by_role("dialog", name="Call").get_by_role("group", name="Steps")).to_be_visible()


_PREPARE = {
    "console-agents": _agents,
    "console-calls": _calls,
    "console-chat": _chat,
    "console-gateway": _gateway,
}


async def main() -> None:
    """Serve the example and write all pictures."""
    IMAGES.mkdir(exist_ok=True)
    with started(["serve", "--config", "agents.example.yaml", "--port", "0"], ROOT) as program:
        await asyncio.to_thread(program.wait_for, "Try:")
        async with async_playwright() as playwright:
            browser = await launched(playwright)
            await shoot(browser, program.url, "console-chat", "#/agents/concierge")
            await shoot(browser, program.url, "console-agents", "")
            await shoot(browser, program.url, "console-calls", "#/calls")
            await shoot(browser, program.url, "console-gateway", "#/gateway")
            await browser.close()


if __name__ == "__main__":
    asyncio.run(main())
