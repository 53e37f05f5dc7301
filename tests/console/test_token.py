"""The token of the console's requests: what it opens, and where it is never found."""

import logging
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import expect

from pallas_gateway.identity.static_keys import hash_of
from tests.console.pages import Pages, enter, findings
from tests.support.gateway import Agent, Running, running, write_project

pytestmark = pytest.mark.asyncio(loop_scope="session")

KEYS = [
    {"name": "narrow", "sha256": hash_of("narrow-secret"), "grants": ["run:agents:echo"]},
    {"name": "idle", "sha256": hash_of("idle-secret"), "grants": ["view:metrics"]},
]
NO_ACCESS = "You are signed in as idle and have no access to agents yet; ask whoever runs this gateway."
STORED = "JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Running]:
    gateway = {"auth": {"tokens": KEYS, "registry": "filtered"}}
    agents = {"echo": Agent(), "hidden": Agent()}
    async with running(write_project(tmp_path_factory.mktemp("token"), agents, gateway=gateway)) as running_gateway:
        yield running_gateway


@pytest.mark.journey
async def test_the_token_opens_the_agents_of_its_grants(served: Running, pages: Pages) -> None:
    page = await pages.open(served.base_url)
    unknown = "The agents of this gateway are shown once it knows who you are. Use a key."
    await expect(page.get_by_text(unknown)).to_be_visible()
    await enter(page, "narrow-secret")
    await expect(page.get_by_role("link", name="Echo", exact=True)).to_be_visible()
    await expect(page.get_by_text("ok", exact=True)).to_be_visible()
    assert await page.get_by_text("Hidden").count() == 0
    await page.goto(f"{served.base_url}/console/#/agents/hidden")
    await expect(page.get_by_text("There is no agent “hidden” here, or you have no access to it.")).to_be_visible()
    await enter(page, "idle-secret")
    await page.get_by_role("link", name="Agents", exact=True).click()
    await expect(page.get_by_text(NO_ACCESS)).to_be_visible()


@pytest.mark.needs("console-tools")
async def test_a_wrong_token_is_tried_before_the_dialog_closes(served: Running, pages: Pages) -> None:
    pages.expected.append("status of 401")
    page = await pages.open(served.base_url)
    await enter(page, "wrong-secret")
    dialog = page.get_by_role("dialog", name="Sign in to")
    await expect(dialog.get_by_role("alert")).to_contain_text("The gateway does not accept this key or sign-in: ")
    assert await findings(page) == []
    await enter(page, "narrow-secret")
    await expect(dialog).to_have_count(0)
    await expect(page.get_by_role("link", name="Echo", exact=True)).to_be_visible()


async def test_the_page_asks_for_a_token_at_the_first_refusal_and_send_is_off_without_the_grant_to_run(
    tmp_path: Path, pages: Pages
) -> None:
    pages.expected.append("status of 401")
    keys = [
        {"name": "viewer", "sha256": hash_of("viewer"), "grants": ["view:agents"]},
        {"name": "runner", "sha256": hash_of("runner"), "grants": ["run:agents:echo"]},
        KEYS[1],
    ]
    async with running(write_project(tmp_path, {"echo": Agent()}, gateway={"auth": {"tokens": keys}})) as one:
        page = await pages.open(one.base_url, "#/agents/echo")
        dialog = page.get_by_role("dialog", name="Sign in to")
        await expect(page).to_have_title("Echo - test - Pallas Gateway")
        await dialog.get_by_role("button", name="Cancel").click()
        await page.get_by_role("textbox", name="Message").fill("hi")
        send = page.get_by_role("button", name="Send")
        await expect(send).to_be_disabled()
        await expect(send).to_have_accessible_description(
            "Callers that are not signed in may not run this agent. Use a key."
        )
        await page.evaluate("window.dispatchEvent(new Event('focus'))")
        await enter(page, "wrong")  # the registry is open: it looks at no token
        await expect(dialog.get_by_role("alert")).to_contain_text("The gateway does not accept this key or sign-in: ")
        await enter(page, "viewer")
        await expect(send).to_have_accessible_description(
            "You may see this agent, and not run it: ask for the grant run:agents:echo."
        )
        await expect(send).to_be_disabled()
        await expect(page.get_by_role("status").filter(has_text="ask for the grant run:agents:echo")).to_be_visible()
        await enter(page, "runner")
        await expect(send).to_be_enabled()
        await expect(page.get_by_role("textbox", name="Message")).to_have_value("hi")
        await page.get_by_role("banner").get_by_role("button", name="Key set").click()
        await expect(dialog.get_by_text("The gateway knows you as runner (key).")).to_be_visible()
        await expect(dialog.get_by_text("key:runner", exact=True)).to_be_visible()
        await enter(page, "idle-secret")  # the registry is open, and lists the agent nevertheless
        await page.get_by_role("link", name="Agents", exact=True).click()
        await expect(page.get_by_text(NO_ACCESS)).to_be_visible()
        await expect(page.get_by_role("link", name="Echo", exact=True)).to_have_count(0)
        await page.close()


@pytest.mark.journey
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
    await expect(page.get_by_role("button", name="Use a key")).to_be_visible()
    assert not any("narrow-secret" in record.getMessage() for record in caplog.records)


@pytest.mark.needs("console-tools")
async def test_a_token_is_kept_in_the_tab_on_request_until_it_is_forgotten(served: Running, pages: Pages) -> None:
    page = await pages.open(served.base_url)
    await enter(page, "narrow-secret", keep=True)
    await expect(page.get_by_text("ok", exact=True)).to_be_visible()
    await page.reload()
    await expect(page.get_by_text("ok", exact=True)).to_be_visible()
    other = await pages.another(page.context, served.base_url)
    await expect(other.get_by_role("button", name="Use a key")).to_be_visible()
    await page.get_by_role("button", name="Key kept").click()
    assert await findings(page) == []
    await page.get_by_role("button", name="Forget key").click()
    await expect(page.get_by_role("button", name="Use a key")).to_be_visible()
    await expect(page.get_by_role("link", name="Echo", exact=True)).to_have_count(0)
    assert "secret" not in await page.evaluate(STORED)
