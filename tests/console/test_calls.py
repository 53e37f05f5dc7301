"""The view of running and ended calls."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Locator, Page, Request, Route, expect

from pallas_gateway.identity.static_keys import hash_of
from tests.console.pages import Pages, enter, findings
from tests.console.talking import HOSTILE, Talking, answered, log, send, talking
from tests.support.calling import ask
from tests.support.gateway import Agent, Running, running, write_project

pytestmark = pytest.mark.asyncio(loop_scope="session")

ALL_AGENTS = ["view:agents", "run:agents"]
GRANTS = {
    "alice": ALL_AGENTS,
    "bob": ALL_AGENTS,
    "viewer": [*ALL_AGENTS, "view:calls"],
    "ops": [*ALL_AGENTS, "view:calls", "cancel:calls"],
}
AUTH = {"tokens": [{"name": name, "sha256": hash_of(name), "grants": grants} for name, grants in GRANTS.items()]}
SHOW = """state => {
  Object.defineProperty(document, 'hidden', {configurable: true, get: () => state === 'hidden'});
  Object.defineProperty(document, 'visibilityState', {configurable: true, get: () => state});
  document.dispatchEvent(new Event('visibilitychange'));
}"""


@pytest_asyncio.fixture(loop_scope="session")
async def talk(tmp_path: Path) -> AsyncGenerator[Talking]:
    async with talking(tmp_path, auth=AUTH) as one:
        yield one


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def open_gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Running]:
    async with running(write_project(tmp_path_factory.mktemp("open"), {"echo": Agent()})) as served:
        yield served


async def signed_in(pages: Pages, talk: Talking, name: str, view: str = "#/calls", **options: Any) -> Page:
    pages.expected.append("status of 401")
    page = await pages.open(talk.base_url, view, **options)
    await enter(page, name)
    await expect(page.get_by_role("dialog")).to_have_count(0)
    return page


async def calling(pages: Pages, talk: Talking, name: str, message: str = "hang", agent: str = "left") -> Page:
    """Make a caller's call that hangs in a nested one."""
    before = len(talk.gate.entered)
    page = await signed_in(pages, talk, name, f"#/agents/{agent}")
    await send(page, message)
    await talk.gate.wait_for_entered(before + 1)
    return page


def rows(page: Page, table: str) -> Locator:
    return page.get_by_role("table", name=table).locator("tbody").get_by_role("row")


async def end(page: Page, agent: str) -> None:
    row = rows(page, "Running calls").filter(has=page.get_by_role("rowheader", name=agent, exact=True))
    await row.get_by_role("button", name="End", exact=True).click()
    await page.get_by_role("dialog", name="End the call?").get_by_role("button", name="End the call").click()


@pytest.mark.journey
@pytest.mark.needs("console-tools")
async def test_a_call_is_ended_in_the_view_and_its_client_reads_by_whom(talk: Talking, pages: Pages) -> None:
    client = await calling(pages, talk, "alice")
    page = await signed_in(pages, talk, "ops")
    running_calls = rows(page, "Running calls")
    await expect(running_calls).to_have_count(2)
    outer, inner = running_calls.first, running_calls.last
    await expect(outer.get_by_role("rowheader")).to_have_text("left")
    assert await inner.get_by_role("rowheader").evaluate("cell => parseFloat(cell.style.paddingLeft)") == 1
    await expect(outer).to_contain_text("key:alice")
    await expect(outer).to_contain_text("MCP")
    assert await findings(page) == []
    await end(page, "left")
    await expect(page.get_by_role("status").filter(has_text="was ended")).to_have_text("The call of left was ended.")
    await expect(page.get_by_text("No call is running.")).to_be_visible()
    await expect(log(client).get_by_text("The call was ended by key:ops.")).to_be_visible()
    await expect(client.get_by_role("button", name="Send")).to_be_visible()
    ended_calls = rows(page, "Ended calls")
    await expect(ended_calls).to_have_count(2)
    await expect(ended_calls.first).to_contain_text("cancelled")


@pytest.mark.needs("console-tools")
async def test_an_ended_call_opens_as_a_tree_without_its_texts(talk: Talking, pages: Pages) -> None:
    client = await signed_in(pages, talk, "alice", "#/agents/left")
    await send(client, "secret words")
    await answered(client, "left told")
    page = await signed_in(pages, talk, "ops", narrow=True)
    row = rows(page, "Ended calls").filter(has=page.get_by_role("rowheader", name="left", exact=True))
    await expect(row.get_by_text("ok", exact=True)).to_be_visible()
    await row.get_by_role("button", name="Inspect").click()
    dialog = page.get_by_role("dialog", name="Call")
    steps = dialog.get_by_role("group", name="Waterfall").get_by_role("rowheader")
    await expect(steps).to_have_text(["left", "leaf/send_message", "leaf"])
    tree = dialog.get_by_role("group", name="Steps")
    await expect(tree.get_by_role("group", name="leaf/send_message")).to_be_visible()
    text = await dialog.inner_text()
    assert "secret" not in text
    assert "0" not in text.splitlines()  # no number of tools that are left out, where none is
    assert await findings(page) == []
    assert await page.evaluate("document.documentElement.scrollWidth") <= 360
    await dialog.get_by_role("button", name="Close").click()
    await expect(row.get_by_role("button", name="Inspect")).to_be_focused()


async def test_a_call_that_waits_for_its_caller_is_marked_and_can_be_ended(talk: Talking, pages: Pages) -> None:
    client = await signed_in(pages, talk, "alice", "#/agents/user")
    await send(client, "name")
    form = client.get_by_role("form").filter(has=client.get_by_role("button", name="Submit"))
    await expect(form).to_be_visible()
    page = await signed_in(pages, talk, "ops")
    await expect(rows(page, "Running calls").get_by_text("waiting for its caller")).to_be_visible()
    await end(page, "user")
    await expect(page.get_by_text("No call is running.")).to_be_visible()
    await form.get_by_role("button", name="Decline").click()
    await expect(log(client).get_by_text("The call was ended by key:ops.")).to_be_visible()
    await expect(client.get_by_role("button", name="Send")).to_be_visible()


async def test_callers_see_what_their_grants_allow(talk: Talking, pages: Pages) -> None:
    pages.expected += ["status of 403", "status of 404"]
    client = await calling(pages, talk, "alice")
    other = await signed_in(pages, talk, "bob")
    await expect(other.get_by_text("No call is running.")).to_be_visible()
    own = await signed_in(pages, talk, "alice")
    await expect(rows(own, "Running calls").first).to_contain_text("left")
    page = await signed_in(pages, talk, "viewer")
    await end(page, "left")
    await expect(page.get_by_role("status").filter(has_text="was not ended")).to_contain_text("cancel:calls")
    await expect(rows(page, "Running calls")).to_have_count(2)
    await end(own, "left")
    await expect(log(client).get_by_text("The call was ended by key:alice.")).to_be_visible()


async def test_a_caller_without_access_reads_why(talk: Talking, pages: Pages) -> None:
    pages.expected.append("status of 401")
    page = await pages.open(talk.base_url, "#/calls")
    refusal = page.get_by_role("main").get_by_role("alert")
    await expect(refusal).to_have_text("The calls are not shown: a bearer token is needed.")


async def test_a_call_that_was_never_seen_running_is_listed(open_gateway: Running, pages: Pages) -> None:
    page = await pages.open(open_gateway.base_url, "#/calls")
    await expect(page.get_by_text("No call has ended.")).to_be_visible()
    await page.clock.install()
    await ask(open_gateway.url("echo"), "quick")
    await page.clock.run_for(12_000)
    await expect(rows(page, "Ended calls").get_by_role("rowheader")).to_have_text("echo")


async def test_a_hidden_page_asks_for_no_calls(open_gateway: Running, pages: Pages) -> None:
    page = await pages.open(open_gateway.base_url, "#/calls")
    asked: list[str] = []

    def note(request: Request) -> None:
        if "/api/v1/calls" in request.url:
            asked.append(request.url)

    page.on("request", note)
    await page.clock.install()
    await expect(page.get_by_text("No call is running.")).to_be_visible()
    await page.clock.run_for(2_100)
    async with page.expect_request("**/api/v1/calls"):
        await page.clock.run_for(2_100)
    await page.evaluate(SHOW, "hidden")
    await page.clock.run_for(2_100)  # a request that had begun
    asked.clear()
    await page.clock.run_for(20_000)
    assert asked == []
    async with page.expect_request("**/api/v1/calls"):
        await page.evaluate(SHOW, "visible")
    await page.get_by_role("link", name="Connect", exact=True).click()
    await page.clock.run_for(2_100)
    asked.clear()
    await page.clock.run_for(20_000)
    assert asked == []


@pytest.mark.needs("console-tools")
async def test_hostile_names_are_shown_as_text(open_gateway: Running, pages: Pages) -> None:
    name = f"{HOSTILE}\x1b[31m" + "x" * 1_000_000
    one: dict[str, Any] = {
        **dict.fromkeys(("agent", "caller", "step", "api", "stopReason", "outcome"), name),
        "id": "a",
    }
    one |= {"parent": None}
    one |= {"seconds": 3.25, "tokens": 1234, "waiting": True, "worker": 0, "startedAt": "2026-01-01T12:00:00.000Z"}
    one |= {"endedAt": "2026-01-01T12:00:03.250Z", "tools": [{"name": name, "start": 0, "seconds": 1, "ok": True}]}
    page = await pages.open(open_gateway.base_url, narrow=True)

    async def respond(route: Route) -> None:  # a gateway gives no agent such a name
        await route.fulfill(json={"calls": [one], "missing": [name]})

    await page.route("**/api/v1/calls*", respond)
    await page.get_by_role("link", name="Calls", exact=True).click()
    await expect(page.get_by_text("These workers did not answer")).to_contain_text("<script>window.pwned = 1</script>")
    row = rows(page, "Running calls")
    await expect(row.get_by_role("rowheader")).to_contain_text("<script>window.pwned = 1</script>")
    await expect(row.get_by_text("waiting for its caller")).to_be_attached()
    assert await page.evaluate("document.documentElement.scrollWidth") <= 360
    assert await findings(page) == []
    await row.get_by_role("button", name="End").click()
    await expect(page.get_by_role("dialog", name="End the call?")).to_contain_text("<script>")
    await page.keyboard.press("Escape")
    await rows(page, "Ended calls").get_by_role("button", name="Inspect").click()
    dialog = page.get_by_role("dialog", name="Call")
    await expect(dialog.get_by_role("group", name="Steps")).to_contain_text("<script>window.pwned = 1</script>")
    assert await findings(page) == []
    assert await page.evaluate("window.pwned") is None
