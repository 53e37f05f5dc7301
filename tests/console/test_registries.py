"""Agents of other gateways beside those of this one."""

from pathlib import Path

import pytest
from playwright.async_api import Page, Route, expect

from pallas_gateway.identity.static_keys import hash_of
from tests.console.pages import Pages, findings
from tests.support.gateway import Agent, running, write_project
from tests.support.listener import reserved_port

pytestmark = pytest.mark.asyncio(loop_scope="session")

KEYS = [{"name": "other", "sha256": hash_of("other-secret"), "grants": ["run:agents"]}]


async def add(page: Page, url: str, token: str = "") -> None:
    await page.get_by_label("URL of the gateway").fill(url)
    await page.get_by_label("Its token").fill(token)
    await page.get_by_role("button", name="Add registry").click()


async def editable(route: Route) -> None:
    answer = await route.fetch()
    await route.fulfill(response=answer, json={**await answer.json(), "may_edit": True})


@pytest.mark.journey
@pytest.mark.needs("console-tools")
async def test_agents_of_an_allowed_registry_are_shown_with_its_name(tmp_path: Path, pages: Pages) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with reserved_port() as port:
        auth = {"auth": {"tokens": KEYS}, "allowed_origins": [f"http://127.0.0.1:{port}"]}
        far = write_project(tmp_path / "b", {"echo": Agent(settings={"title": "Far"})}, gateway=auth)
        async with running(far) as other:
            listed = {"port": port, "console_registries": [other.base_url]}
            async with running(write_project(tmp_path / "a", {"echo": Agent()}, gateway=listed)) as served:
                pages.origins = {other.base_url}
                page = await pages.open(served.base_url)
                await page.get_by_text("Other registries").click()
                await add(page, f"{other.base_url}/.well-known/mcp/server.json", "other-secret")
                card = page.get_by_role("listitem").filter(has=page.get_by_role("link", name="Far", exact=True))
                await expect(card.get_by_text("ok", exact=True)).to_be_visible()
                await expect(card.get_by_text(other.base_url.removeprefix("http://"))).to_be_visible()
                await expect(page.get_by_role("link", name="Echo", exact=True)).to_be_visible()
                assert await findings(page) == []
                assert "secret" not in await page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}])")
                await page.route(f"{other.base_url}/api/agents/echo", editable)
                await card.get_by_role("link", name="Details of Far").click()
                await expect(page.get_by_text("the grant view:instructions")).to_be_visible()
                await expect(page.get_by_role("link", name="Edit")).to_have_count(0)
                await expect(page.get_by_role("heading", name="Ratings")).to_have_count(0)
                await page.go_back()
                await page.get_by_text("Other registries").click()
                await page.get_by_role("button", name=f"Remove {other.base_url}").click()
                await expect(page.get_by_role("link", name="Far", exact=True)).to_have_count(0)
                await page.close()


async def test_a_registry_that_cannot_be_read_shows_the_missing_setting(tmp_path: Path, pages: Pages) -> None:
    with reserved_port() as closed:
        url = f"http://127.0.0.1:{closed}"
        listed = {"console_registries": [url]}
        async with running(write_project(tmp_path, {"echo": Agent()}, gateway=listed)) as served:
            pages.origins = {url}
            page = await pages.open(served.base_url)
            await page.get_by_text("Other registries").click()
            await add(page, "https://unlisted.example/pallas")
            setting = "does not list it: gateway.console_registries: [https://unlisted.example/pallas]"
            await expect(page.get_by_text(setting)).to_be_visible()
            await add(page, url)
            await expect(page.get_by_text(f"gateway.allowed_origins: [{served.base_url}]")).to_be_visible()
            await expect(page.get_by_text("ok", exact=True)).to_be_visible()
            await page.close()
