"""The view of usage and limits."""

import re
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Locator, Page, Route, expect

from pallas_gateway.identity.static_keys import hash_of
from tests.console.pages import Pages, enter, findings
from tests.console.talking import HOSTILE, Talking, answered, send, talking

pytestmark = pytest.mark.asyncio(loop_scope="session")

GRANTS = {"alice": ["view:agents", "run:agents"], "ops": ["view:agents", "run:agents", "view:calls"]}
AUTH = {"tokens": [{"name": name, "sha256": hash_of(name), "grants": grants} for name, grants in GRANTS.items()]}
RULES = [
    {"name": "busy", "caller": "key:*", "agent": "left", "calls_per_minute": 50, "tokens_per_day": 4000},
    {"name": "seen", "caller": "key:alice", "calls_at_once": 3, "enforce": False},
]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def talk(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Talking]:
    async with talking(tmp_path_factory.mktemp("usage"), auth=AUTH, limits={"rules": RULES}) as one:
        yield one


async def signed_in(pages: Pages, talk: Talking, name: str, view: str = "#/usage", **options: Any) -> Page:
    pages.expected.append("status of 401")
    page = await pages.open(talk.base_url, view, **options)
    await enter(page, name)
    await expect(page.get_by_role("dialog")).to_have_count(0)
    return page


def rows(page: Page, table: str) -> Locator:
    return page.get_by_role("table", name=table, exact=True).locator("tbody").get_by_role("row")


@pytest.mark.journey
@pytest.mark.needs("console-tools")
async def test_callers_see_their_own_usage_and_limits(talk: Talking, pages: Pages) -> None:
    client = await signed_in(pages, talk, "alice", "#/agents/left")
    await send(client, "go")
    await answered(client, "left told")
    await client.get_by_role("link", name="Usage", exact=True).click()
    await expect(client.get_by_role("heading", name="Usage of key:alice")).to_be_visible()
    own = rows(client, "Own usage")
    await expect(own.get_by_role("rowheader")).to_have_text(["left", "leaf"])
    await expect(own.first.get_by_role("cell")).to_have_text(["1", "0", "0", "20", "10"])
    await expect(client.get_by_role("table", name="Usage of all callers")).to_have_count(0)
    limits = rows(client, "Limits")
    await expect(limits.get_by_role("rowheader")).to_have_text(["busy", "busy", "seen counts only"])
    await expect(limits.nth(1)).to_contain_text("4,000 tokens a day")
    assert await findings(client) == []
    page = await signed_in(pages, talk, "ops", narrow=True)
    everyone = rows(page, "Usage of all callers")
    await expect(everyone.get_by_role("rowheader")).to_have_text(["key:alice", "key:alice"])
    await expect(page.get_by_text("No calls.")).to_be_visible()
    [period] = await page.get_by_label("Period").locator("option").all_text_contents()
    assert period.startswith("Since ")  # it has not run since midnight, and nothing is stored
    await expect(everyone.first).to_contain_text("left")
    assert await findings(page) == []
    assert await page.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.needs("console-tools")
async def test_the_last_week_is_shown_as_bars_and_as_a_table(tmp_path: Path, pages: Pages) -> None:
    async with talking(tmp_path, auth=AUTH, database="sqlite:///pallas.db") as stored:
        client = await signed_in(pages, stored, "alice", "#/agents/left")
        await send(client, "go")
        await answered(client, "left told")
        await expect(client.locator(".call-facts")).to_contain_text("30 tokens in, 15 out with nested calls")
        await client.get_by_role("link", name="Usage", exact=True).click()
        week = rows(client, "Last 7 days")
        await expect(week).to_have_count(7)
        await expect(week.first.get_by_role("cell")).to_have_text(["not stored", "", "", "", ""])
        await expect(week.last.get_by_role("cell")).to_have_text(["2", "0", "30", "15", ""])
        await expect(client.locator("svg.week rect:not(.failed)").last).to_have_attribute("height", "72")
        await expect(client.get_by_text("2 calls since")).to_be_visible()
        periods = client.get_by_label("Period").locator("option")
        await expect(periods).to_have_text(["Today (UTC)", "Last 7 days", re.compile("Since ")])
        await client.get_by_label("Period").select_option("Last 7 days")
        await expect(rows(client, "Own usage").first.get_by_role("cell")).to_have_text(["1", "0", "0", "0", "20", "10"])
        assert await findings(client) == []
        page = await signed_in(pages, stored, "ops", narrow=True)
        await expect(rows(page, "Last 7 days of all callers")).to_have_count(7)
        assert await findings(page) == []
        assert await page.evaluate("document.documentElement.scrollWidth") <= 360


async def test_a_caller_without_access_reads_why(talk: Talking, pages: Pages) -> None:
    pages.expected.append("status of 401")
    page = await pages.open(talk.base_url, "#/usage")
    refusal = page.get_by_role("main").get_by_role("alert")
    await expect(refusal).to_have_text("The usage is not shown: a bearer token is needed.")


@pytest.mark.needs("console-tools")
async def test_hostile_names_many_rows_and_costs_are_shown_as_text(talk: Talking, pages: Pages) -> None:
    name = f"{HOSTILE}\x1b[31m" + "x" * 100_000
    tokens = {"input": 5, "cachedInput": 2, "cacheWrite": 1, "output": 3}
    row = {"agent": name, "calls": 1, "refused": 0, "nestedCalls": 0, "tokens": tokens, "estimatedTokens": 3}
    row |= {"cost": 0.001234}
    limit = {"rule": name, "agents": [name], "kind": name, "limit": 10, "used": 99, "resetSeconds": 30}
    all_rows = [row | {"caller": name}, *[row | {"agent": "a", "caller": f"key:{n}", "cost": 2} for n in range(300)]]
    own = {"today": [row], "total": [], "complete": False}
    document = {
        "day": "2026-01-01",
        "since": "2025-12-31T00:00:00Z",
        "caller": name,
        "own": own,
        "limits": [limit | {"enforced": True}],
    }
    document |= {"all": {"today": all_rows, "total": []}}
    pages.expected.append("status of 401")
    page = await pages.open(talk.base_url, narrow=True)

    async def respond(route: Route) -> None:  # a gateway gives no agent such a name
        await route.fulfill(json=document)

    await page.route("**/api/v1/usage?*", respond)
    await enter(page, "ops")
    await page.get_by_role("link", name="Usage", exact=True).click()
    row_shown = rows(page, "Own usage")
    await expect(row_shown.get_by_role("rowheader")).to_contain_text("<script>window.pwned = 1</script>")
    await expect(row_shown.get_by_role("cell")).to_have_text(["1", "0", "0", "8", "3", "0.00123"])
    await expect(page.get_by_role("meter")).to_have_js_property("value", 10)
    await expect(page.get_by_text("There are too many callers to count each.")).to_be_visible()
    await expect(page.get_by_text("101 rows with fewer tokens are not shown.")).to_be_visible()
    await expect(page.get_by_text("903 of the tokens are estimated")).to_be_visible()
    await expect(rows(page, "Usage of all callers")).to_have_count(200)
    assert await findings(page) == []
    assert await page.evaluate("document.documentElement.scrollWidth") <= 360
    assert await page.evaluate("window.pwned") is None
