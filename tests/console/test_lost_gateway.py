"""What the console shows while its gateway cannot be reached, and after it is back."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from tests.console.pages import Pages, findings
from tests.console.talking import Talking, answered, log, send, talking
from tests.support.breaker import Breaker, breaker

pytestmark = pytest.mark.asyncio(loop_scope="session")

LOST = "The gateway cannot be reached; trying again"


@asynccontextmanager
async def behind(talk: Talking) -> AsyncGenerator[tuple[Breaker, str]]:
    """A relay before a gateway, which can be cut, and its URL."""
    async with breaker(talk.served.gateway.addresses.registry_port, share=0, most_chunks=0, seed=1) as relay:
        yield relay, f"http://127.0.0.1:{relay.port}"


async def states(page: Page) -> set[str]:
    return {text for text in await page.locator("main .badge").all_text_contents() if text != "Loading"}


@pytest.mark.journey
@pytest.mark.needs("console-tools")
async def test_the_states_of_a_lost_gateway_are_unknown_until_it_is_back(tmp_path: Path, pages: Pages) -> None:
    pages.expected.append("Failed to load resource")
    async with talking(tmp_path) as talk, behind(talk) as (relay, url):
        page = await pages.open(url)
        await page.get_by_role("link", name="Gateway", exact=True).click()
        await expect(page.get_by_role("region", name="State").get_by_text("ready", exact=True)).to_be_visible()
        await page.get_by_role("link", name="Agents", exact=True).click()
        await expect(page.get_by_text("Checked at")).to_be_visible()
        assert {"ok", "error"} <= await states(page)
        await relay.stop()
        await page.get_by_role("button", name="Check now").click()
        await expect(page.get_by_role("alert")).to_contain_text(LOST)
        assert await page.get_by_role("alert").count() == 1
        assert await states(page) == {"unknown"}
        await expect(page.get_by_role("alert")).to_contain_text("Its last answer was at ")
        await expect(page.get_by_role("listitem").get_by_text("Last answer at")).not_to_have_count(0)
        await expect(page.get_by_text("Checked at")).to_have_count(0)
        assert await findings(page) == []
        await page.get_by_role("link", name="Gateway", exact=True).click()
        await expect(page.get_by_role("region", name="State").get_by_text("Not known now.")).to_be_visible()
        graph = page.get_by_role("group", name="Graph")
        await expect(graph.locator(".state").first).to_have_text("unknown")
        assert set(await graph.locator(".state").all_text_contents()) == {"unknown"}
        assert await states(page) == {"unknown"}
        await page.get_by_role("link", name="Agents", exact=True).click()
        relay.start()
        await expect(page.get_by_text("Checked at")).to_be_visible()
        await expect(page.get_by_role("alert")).to_have_count(0)
        assert {"ok", "error"} <= await states(page)
        await page.close()


@pytest.mark.needs("console-tools")
async def test_what_was_streamed_stays_while_the_gateway_is_lost_and_goes_on_when_it_is_back(
    tmp_path: Path, pages: Pages
) -> None:
    pages.expected.append("Failed to load resource")
    async with talking(tmp_path, database="sqlite:///threads.db") as talk, behind(talk) as (relay, url):
        page = await pages.open(url, "#/agents/user")
        await send(page, "stream")
        await expect(page.get_by_role("heading", name="One")).to_be_visible()
        await relay.stop()
        await expect(page.get_by_role("alert")).to_contain_text(LOST)
        await expect(log(page)).to_contain_text("The connection to this call is lost; the call may still run.")
        await expect(page.get_by_role("heading", name="One")).to_be_visible()
        await expect(page.get_by_text("last event")).to_have_count(0)
        await page.get_by_role("button", name="Stop").click()
        await expect(log(page).get_by_role("alert")).to_contain_text("The call could not be stopped: ")
        assert await findings(page) == []
        relay.start()
        await expect(page.get_by_text("last event")).to_be_visible()
        await expect(page.get_by_role("heading", name="One")).to_have_count(1)
        await expect(page.get_by_role("alert")).to_have_count(0)
        talk.gate.let_through(2)
        await answered(page, "three")
        await expect(log(page).get_by_role("listitem").filter(has_text="four")).to_have_count(1)
        await page.close()


async def test_a_call_of_the_browser_that_lost_its_gateway_keeps_its_text_and_has_failed(
    tmp_path: Path, pages: Pages
) -> None:
    pages.expected.append("Failed to load resource")
    async with talking(tmp_path) as talk, behind(talk) as (relay, url):
        page = await pages.open(url, "#/agents/user")
        await send(page, "stream")
        await expect(page.get_by_role("heading", name="One")).to_be_visible()
        await relay.stop()
        await expect(log(page).get_by_role("alert")).to_have_text(
            "The connection ended before the answer was complete."
        )
        await expect(page.get_by_role("heading", name="One")).to_be_visible()
        await expect(page.get_by_text("last event")).to_have_count(0)
        await expect(page.get_by_role("button", name="Send")).to_be_disabled()
        await page.close()
