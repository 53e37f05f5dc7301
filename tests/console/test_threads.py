"""Conversations that the gateway keeps, in the console: found again during a call and a question, from any tab."""

import json
import re
from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio
from playwright.async_api import Locator, Page, Request, Route, expect

from tests.console.pages import Pages, findings
from tests.console.talking import Talking, answered, chat, log, outline, send, talking, tool
from tests.support.gateway import until_idle

pytestmark = pytest.mark.asyncio(loop_scope="session")
APPROVAL = "May the tool asking/wipe run"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def talk(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Talking]:
    async with talking(tmp_path_factory.mktemp("threads"), database="sqlite:///threads.db") as served:
        yield served


def kept(page: Page, name: str, *, on_gateway: bool = True) -> Locator:
    place = page.get_by_role("list", name="On the gateway" if on_gateway else "In this browser")
    return place.get_by_role("button", name=name, exact=True)


@pytest.mark.journey
@pytest.mark.needs("console-tools")
async def test_a_conversation_is_kept_by_the_gateway_and_found_from_another_browser(
    talk: Talking, pages: Pages
) -> None:
    page = await chat(pages, talk, "leaf", "one")
    await answered(page, "leaf heard one")
    await expect(page.get_by_role("button", name="Retry")).to_be_visible()
    other = await pages.open(talk.base_url, "#/agents/leaf")
    await expect(log(other)).to_contain_text("leaf heard one")
    await other.get_by_role("button", name="Inspect").click()
    await expect(other.get_by_text("The steps of this call are not known to this page")).to_be_visible()
    await expect(other.get_by_role("dialog").get_by_text("Tokens in")).to_be_visible()
    await other.keyboard.press("Escape")
    await expect(other.locator("dialog")).to_have_count(0)  # it has returned the focus
    await send(other, "two")
    await answered(other, "leaf heard two")
    assert [one["content"] for one in talk.llm.requests[-1].messages[1:]] == ["one", "leaf heard one", "two"]
    await page.evaluate("window.dispatchEvent(new Event('focus'))")
    await expect(log(page)).to_contain_text("leaf heard two")
    await page.get_by_text("More", exact=True).click()
    async with page.expect_download() as export:
        await page.get_by_role("button", name="Export JSON").click()
    exported = await (await export.value).path()
    assert [turn["message"] for turn in json.loads(exported.read_text())["conversation"]["turns"]] == ["one", "two"]
    await expect(page.get_by_role("button", name="Export JSON")).to_be_hidden()
    await page.get_by_text("More", exact=True).click()
    await page.get_by_role("button", name="Rename").click()
    await expect(page.get_by_role("button", name="Export JSON")).to_be_hidden()
    await page.get_by_label("Name", exact=True).fill("Renamed")
    await page.get_by_role("dialog").get_by_role("button", name="Rename").click()
    await expect(kept(page, "Renamed")).to_be_visible()
    await page.locator("input[type=file][accept*=json]").set_input_files(exported)
    await expect(kept(page, "one", on_gateway=False)).to_be_visible()
    assert await findings(page) == []
    await other.evaluate("window.dispatchEvent(new Event('focus'))")
    await expect(kept(other, "Renamed")).to_be_visible()
    await kept(page, "Renamed").click()
    await page.get_by_text("More", exact=True).click()
    await page.get_by_role("button", name="Delete").click()
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await expect(kept(page, "Renamed")).to_have_count(0)
    pages.expected.append("status of 404")
    await send(other, "three")
    await expect(log(other).get_by_role("alert")).to_contain_text("no thread")
    await other.evaluate("window.dispatchEvent(new Event('focus'))")
    await expect(other.get_by_role("alert")).to_contain_text("deleted elsewhere")


async def test_an_edited_message_goes_on_in_a_copy_of_the_conversation(talk: Talking, pages: Pages) -> None:
    page = await chat(pages, talk, "right", "one")
    await answered(page, "heard one")
    await send(page, "two")
    await answered(page, "heard two")
    before = talk.llm.requests[-1].messages[1:3]

    await page.get_by_role("button", name="Edit").last.click()
    await expect(page.get_by_text("Sending begins a copy of the conversation")).to_be_visible()
    await page.get_by_role("textbox", name="Message").fill("changed")
    pages.expected.append("Failed to load resource")
    await page.route("**/fork", lambda route: route.abort())
    await page.get_by_role("button", name="Send").click()
    await expect(page.get_by_text("This conversation cannot be kept or read")).to_be_visible()
    await expect(page.get_by_role("textbox", name="Message")).to_have_value("changed")
    await page.unroute("**/fork")
    await page.get_by_role("button", name="Send").click()
    await answered(page, "heard changed")
    assert talk.llm.requests[-1].messages[1:3] == before
    await expect(log(page)).to_contain_text("heard one")
    await expect(log(page)).not_to_contain_text("heard two")
    await expect(kept(page, "one")).to_have_count(2)
    await page.reload()
    await expect(log(page)).to_contain_text("heard changed")
    await kept(page, "one").last.click()
    await expect(log(page)).to_contain_text("heard two")

    await page.get_by_role("button", name="Edit").first.click()
    await page.get_by_role("textbox", name="Message").fill("first")
    await page.get_by_role("button", name="Send").click()
    await answered(page, "heard first")
    await expect(kept(page, "first")).to_be_visible()
    await expect(kept(page, "one")).to_have_count(2)


async def test_a_reload_during_a_call_finds_it_with_all_its_steps(talk: Talking, pages: Pages) -> None:
    entered = len(talk.gate.entered)
    page = await chat(pages, talk, "root", "hang")
    await talk.gate.wait_for_entered(entered + 1)
    await page.reload()
    await expect(tool(log(page), "leaf/send_message")).to_contain_text("running")
    assert await outline(page) == ["left/send_message", "  leaf/send_message"]
    await page.get_by_role("button", name="Stop").click()
    await expect(page.get_by_text("Stopped.")).to_be_visible()
    await until_idle(talk.served)
    await expect(page.get_by_role("button", name="Retry")).to_be_visible()
    await page.reload()
    await expect(page.get_by_text("Stopped.")).to_be_visible()


async def test_text_goes_on_after_a_reload(talk: Talking, pages: Pages) -> None:
    page = await chat(pages, talk, "user", "stream")
    await expect(page.get_by_role("heading", name="One")).to_be_visible()
    await page.reload()
    await expect(page.get_by_role("heading", name="One")).to_be_visible()
    talk.gate.let_through(2)
    await answered(page, "three")
    await expect(log(page).get_by_role("listitem").filter(has_text="four")).to_have_count(1)
    await expect(log(page)).to_contain_text(re.compile(r"tokens in, .* out · "))


@pytest.mark.needs("console-tools")
async def test_a_question_is_there_after_a_reload_and_another_tab_answers_it(talk: Talking, pages: Pages) -> None:
    page = await chat(pages, talk, "boss", "wipe /tmp")
    form = page.get_by_role("form", name=APPROVAL)
    await expect(form).to_be_visible()
    await page.reload()
    await expect(form).to_contain_text('"path": "/tmp"')
    await expect(tool(log(page), "asking/wipe")).to_contain_text("waiting for you")
    assert await findings(page) == []
    other = await pages.another(page.context, talk.base_url, "#/agents/boss")
    await other.get_by_role("form", name=APPROVAL).get_by_role("button", name="Allow once").click()
    await answered(other, "wiped /tmp")
    await expect(other.get_by_text("You allowed asking/wipe once.")).to_be_visible()
    await expect(form).to_have_count(0)
    await answered(page, "wiped /tmp")
    await expect(page.get_by_text("answered elsewhere")).to_be_visible()
    assert await outline(page) == await outline(other)


async def test_a_form_that_the_gateway_refuses_may_be_answered_again(talk: Talking, pages: Pages) -> None:
    page = await chat(pages, talk, "user", "name")
    form = page.get_by_role("form", name="asking: What is your name?")
    await form.get_by_label("name").fill("Ada")
    bad = lambda route: route.continue_(post_data=route.request.post_data.replace("Ada", "x" * 21))  # noqa: E731
    await page.route("**/answers", bad, times=1)
    pages.expected.append("status of 422")
    await form.get_by_role("button", name="Submit").click()
    await expect(form.get_by_role("alert")).to_contain_text("must have at most 20 characters")
    await form.get_by_role("button", name="Submit").click()
    await answered(page, "Ada")


async def test_deleting_a_conversation_ends_its_call(talk: Talking, pages: Pages) -> None:
    entered = len(talk.gate.entered)
    page = await chat(pages, talk, "user", "hang")
    await talk.gate.wait_for_entered(entered + 1)
    await page.get_by_text("More", exact=True).click()
    await page.get_by_role("button", name="Delete").click()
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await expect(kept(page, "hang")).to_have_count(0)
    await until_idle(talk.served)


async def test_the_token_is_sent_and_a_refusal_is_a_sentence(talk: Talking, pages: Pages) -> None:
    page = await pages.open(talk.base_url, "#/connect")  # a view that requests nothing by itself
    await page.evaluate("sessionStorage.setItem('pallas.token', 'secret')")
    refusal = json.dumps({"error": "threads_unavailable", "error_description": "The database cannot be used now."})
    seen = []

    async def refuse(route: Route) -> None:
        seen.append(route.request.headers.get("authorization"))
        await route.fulfill(status=503, content_type="application/json", body=refusal)

    await page.route("**/api/v1/**", refuse)
    pages.expected.append("status of 503")
    await page.reload()
    await page.goto(f"{talk.base_url}/console/#/agents/leaf")
    list_of_them = page.get_by_role("alert").filter(has_text="cannot be read: The database cannot be used now.")
    await expect(list_of_them).to_be_visible()
    await send(page, "one")
    await expect(log(page).get_by_role("alert")).to_have_text("The database cannot be used now.")
    assert set(seen) == {"Bearer secret"}
    await page.unroute("**/api/v1/**")
    await page.get_by_role("button", name="Retry").click()
    await answered(page, "leaf heard one")
    await page.get_by_role("banner").get_by_role("button").click()

    def is_listing_without_token(request: Request) -> bool:
        return "/threads?" in request.url and "authorization" not in request.headers

    async with page.expect_request(is_listing_without_token):  # what failed before is read again with the token, too
        await page.get_by_role("button", name="Forget key").click()
