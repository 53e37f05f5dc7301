"""The token of the console's requests: what it opens, and where it is never found."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from playwright.async_api import expect

from pallas_gateway.identity.static_keys import hash_of
from tests.console.pages import findings
from tests.support.gateway import Agent, Running, running, write_project

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from playwright.async_api import Page

    from tests.console.pages import Pages

pytestmark = pytest.mark.asyncio(loop_scope="session")

KEYS = [
    {"name": "narrow", "sha256": hash_of("narrow-secret"), "grants": ["run:agents:echo"]},
    {"name": "idle", "sha256": hash_of("idle-secret"), "grants": ["view:metrics"]},
]
STORED = "JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Running]:
    gateway = {"auth": {"tokens": KEYS, "registry": "filtered"}}
    agents = {"echo": Agent(), "hidden": Agent()}
    async with running(write_project(tmp_path_factory.mktemp("token"), agents, gateway=gateway)) as running_gateway:
        yield running_gateway


async def enter(page: Page, token: str, *, keep: bool = False) -> None:
    await page.get_by_role("banner").get_by_role("button").click()
    dialog = page.get_by_role("dialog", name="Token")
    await dialog.get_by_label("Bearer token").fill(token)
    if keep:
        await dialog.get_by_role("checkbox").check()
    await dialog.get_by_role("button", name="Use token").click()


async def test_the_token_opens_the_agents_of_its_grants(served: Running, pages: Pages) -> None:
    page = await pages.open(served.base_url)
    await expect(page.get_by_text("Callers without a token may view no agent here. Set a token.")).to_be_visible()
    await enter(page, "narrow-secret")
    await expect(page.get_by_role("link", name="Echo", exact=True)).to_be_visible()
    await expect(page.get_by_text("ok", exact=True)).to_be_visible()
    assert await page.get_by_text("Hidden").count() == 0
    await page.goto(f"{served.base_url}/console/#/agents/hidden")
    await expect(page.get_by_text("There is no agent “hidden” here, or the token may not view it.")).to_be_visible()
    await enter(page, "idle-secret")
    await page.get_by_role("link", name="Agents", exact=True).click()
    await expect(page.get_by_text("This token may view no agent of this gateway.")).to_be_visible()


async def test_a_wrong_token_is_named_as_the_reason(served: Running, pages: Pages) -> None:
    pages.expected.append("status of 401")
    page = await pages.open(served.base_url)
    await enter(page, "wrong-secret")
    await expect(page.get_by_role("alert")).to_contain_text("The gateway does not accept this token:")
    assert await findings(page) == []


async def test_the_token_is_in_no_url_storage_or_log(
    served: Running, pages: Pages, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    urls: list[str] = []
    page = await pages.open(served.base_url)
    page.on("request", lambda request: urls.append(request.url))
    await enter(page, "narrow-secret")
    await expect(page.get_by_text("ok", exact=True)).to_be_visible()
    assert "secret" not in await page.evaluate(STORED)
    assert urls
    assert not any("secret" in url for url in [*urls, page.url])
    await page.reload()
    await expect(page.get_by_role("button", name="Set token")).to_be_visible()
    assert not any("narrow-secret" in record.getMessage() for record in caplog.records)


async def test_a_token_is_kept_in_the_tab_on_request_until_it_is_forgotten(served: Running, pages: Pages) -> None:
    page = await pages.open(served.base_url)
    await enter(page, "narrow-secret", keep=True)
    await expect(page.get_by_text("ok", exact=True)).to_be_visible()
    await page.reload()
    await expect(page.get_by_text("ok", exact=True)).to_be_visible()
    other = await pages.another(page.context, served.base_url)
    await expect(other.get_by_role("button", name="Set token")).to_be_visible()
    await page.get_by_role("button", name="Token kept").click()
    assert await findings(page) == []
    await page.get_by_role("button", name="Forget token").click()
    await expect(page.get_by_role("button", name="Set token")).to_be_visible()
    await expect(page.get_by_role("link", name="Echo", exact=True)).to_have_count(0)
    assert "secret" not in await page.evaluate(STORED)
