"""What people do every day in the chat: copy, search, links to conversations, other answers."""

import asyncio
import re
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Locator, Page, Route, ViewportSize, expect

from pallas_gateway.identity.static_keys import hash_of
from tests.console.pages import Pages, enter, findings, shows_copied
from tests.console.talking import Talking, answered, begin, chat, log, send, talking, tool

pytestmark = pytest.mark.asyncio(loop_scope="session")
PHONE: ViewportSize = {"width": 390, "height": 844}
CLIPBOARD = ["clipboard-read", "clipboard-write"]
THREADS = re.compile(r"/api/v1/agents/leaf/threads\?")
OF_A_CONVERSATION = re.compile("/conversations/")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def talk(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Talking]:
    """A gateway without a database: the browser keeps the conversations."""
    async with talking(tmp_path_factory.mktemp("browser")) as served:
        yield served


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def kept(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Talking]:
    """A gateway that keeps the conversations."""
    async with talking(tmp_path_factory.mktemp("gateway"), database="sqlite:///threads.db") as served:
        yield served


async def copied(page: Page, name: str) -> str:
    await page.get_by_role("button", name=name, exact=True).last.focus()
    async with shows_copied(page, name.replace("Copy", "Copied")):
        await page.keyboard.press("Enter")
    return str(await page.evaluate("navigator.clipboard.readText()"))


# --- copy ------------------------------------------------------------------------------------------------------------


@pytest.mark.journey
@pytest.mark.needs("console-tools")
async def test_answers_and_code_are_copied_as_they_were_written(talk: Talking, pages: Pages) -> None:
    code = "print(1)\nprint(2)"
    page = await chat(pages, talk, "user", f"**see**\n\n```py\n{code}\n```\n", permissions=CLIPBOARD)
    await answered(page, "print(2)")
    assert await copied(page, "Copy the answer") == f"user heard **see**\n\n```py\n{code}\n```\n as number 1"
    assert await copied(page, "Copy the code") == code
    await expect(page.get_by_role("button", name="Copy the code")).to_have_text("Copy")
    assert await findings(page) == []


async def test_arguments_and_results_of_tools_are_copied(talk: Talking, pages: Pages) -> None:
    page = await chat(pages, talk, "left", "go", permissions=CLIPBOARD)
    await answered(page, "left told go")
    call = tool(log(page), "leaf/send_message")
    await call.locator("summary").filter(has_text="Arguments").click()
    await call.locator("summary").filter(has_text="Result").click()
    assert await copied(page, "Copy the arguments of leaf/send_message") == '{\n  "message": "go.x"\n}'
    assert await copied(page, "Copy the result of leaf/send_message") == "leaf heard go.x"


async def test_a_clipboard_that_refuses_is_a_message(talk: Talking, pages: Pages) -> None:
    page = await chat(pages, talk, "leaf", "one")
    await answered(page, "leaf heard one")
    await page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(new Error('no')); }")
    await page.get_by_role("button", name="Copy the answer").click()
    await expect(page.get_by_role("status").get_by_text("The browser does not allow copying.")).to_be_visible()


# --- a link to a conversation ----------------------------------------------------------------------------------------

MISSING = "The conversation of this link is not here"
KEYS = [{"name": name, "sha256": hash_of(name), "grants": ["run:agents"]} for name in ("ada", "ben")]
TWO_KEYS = {"tokens": KEYS, "anonymous": ["view:agents"]}


async def two_conversations(page: Page) -> tuple[str, str]:
    """Have two conversations, `one` and `two`, of which the last is open; return their addresses."""
    await send(page, "one")
    await answered(page, "heard one")
    await expect(page).to_have_url(OF_A_CONVERSATION)
    first = page.url
    await page.get_by_role("button", name="New conversation").click()
    await expect(page).not_to_have_url(OF_A_CONVERSATION)
    await send(page, "two")
    await answered(page, "heard two")
    await expect(page).to_have_url(OF_A_CONVERSATION)
    assert page.url != first
    return first, page.url


@pytest.mark.needs("console-tools")
@pytest.mark.parametrize("on_gateway", [False, True])
async def test_the_address_follows_the_open_conversation(
    talk: Talking, kept: Talking, pages: Pages, *, on_gateway: bool
) -> None:
    one = kept if on_gateway else talk
    page = await chat(pages, one, "leaf", permissions=CLIPBOARD)
    agent = f"{one.base_url}/console/#/agents/leaf"
    await expect(page).to_have_url(agent)
    first, second = await two_conversations(page)
    assert first.startswith(f"{agent}/conversations/")
    await page.reload()
    await answered(page, "heard two")
    await expect(page).to_have_url(second)
    await page.get_by_role("button", name="one", exact=True).click()
    await expect(page).to_have_url(first)
    await page.go_back()
    await expect(page).to_have_url(second)
    await answered(page, "heard two")
    await expect(log(page)).not_to_contain_text("heard one")
    await page.go_forward()
    await answered(page, "heard one")
    await page.get_by_role("link", name="Details of Leaf").click()
    await expect(page).to_have_url(f"{agent}/details")
    await page.go_back()
    await answered(page, "heard one")

    await page.get_by_text("More", exact=True).click()
    async with shows_copied(page, "Copied link"):
        await page.get_by_role("button", name="Copy link").click()
    link = str(await page.evaluate("navigator.clipboard.readText()"))
    assert link == first
    other = await pages.another(page.context, one.base_url, link.partition("/console/")[2])
    await answered(other, "heard one")
    assert await findings(page) == []
    await page.get_by_role("button", name="Delete").click()
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await expect(page).to_have_url(agent)
    await other.reload()
    await expect(other.get_by_role("alert")).to_contain_text(MISSING)
    await expect(other).to_have_url(link)
    await send(other, "three")
    await answered(other, "heard three")
    await expect(other.get_by_role("alert")).to_have_count(0)
    await expect(other).not_to_have_url(link)


async def test_a_conversation_that_is_begun_while_the_list_is_read_stays_open(kept: Talking, pages: Pages) -> None:
    page = await chat(pages, kept, "left", "before")
    await answered(page, "before")
    asked, go = asyncio.Event(), asyncio.Event()

    async def hold(route: Route) -> None:
        asked.set()
        await go.wait()
        await route.fallback()

    listing = re.compile(r"/agents/left/threads\?")
    await page.route(listing, hold)
    await page.reload()
    await asyncio.wait_for(asked.wait(), 15)
    await page.get_by_role("button", name="New conversation").click()
    go.set()
    await expect(page.get_by_role("button", name="before", exact=True)).to_be_visible()
    await page.unroute(listing)
    await send(page, "after")
    await answered(page, "after")
    await expect(log(page)).not_to_contain_text("before")


async def test_a_conversation_that_is_answered_while_the_list_is_read_stays_open_and_listed(
    kept: Talking, pages: Pages
) -> None:
    page = await pages.open(kept.base_url, "#/connect")
    listing = re.compile(r"/agents/root/threads\?")
    asked, go = asyncio.Event(), asyncio.Event()
    before = await kept_list(kept)

    async def hold(route: Route) -> None:
        asked.set()
        await go.wait()
        await route.fulfill(json=before)

    await page.route(listing, hold)
    await page.goto(f"{kept.base_url}/console/#/agents/root")
    await asyncio.wait_for(asked.wait(), 15)
    await send(page, "quick")
    await answered(page, "root told quick")
    async with page.expect_response(listing):
        go.set()
    await expect(page.get_by_text("Reading the conversations…")).to_have_count(0)
    await expect(page.get_by_role("button", name="quick", exact=True)).to_be_visible()
    await answered(page, "root told quick")


async def kept_list(kept: Talking) -> Any:
    async with httpx.AsyncClient(base_url=kept.base_url, trust_env=False) as http:
        return (await http.get("/api/v1/agents/root/threads")).json()


async def test_a_link_opens_after_its_owner_has_set_a_token(tmp_path: Path, pages: Pages) -> None:
    async with talking(tmp_path, database="sqlite:///threads.db", auth=TWO_KEYS) as one:
        pages.expected += ["status of 401", "status of 403"]
        page = await chat(pages, one, "leaf")
        await enter(page, "ada")
        await expect(page.get_by_role("dialog")).to_have_count(0)
        first, _ = await two_conversations(page)
        other = await pages.open(one.base_url, first.partition("/console/")[2])
        await expect(other.get_by_role("textbox", name="Message")).to_be_visible()
        await enter(other, "ben")
        await expect(other.get_by_role("alert")).to_contain_text(MISSING)
        await enter(other, "ada")
        await answered(other, "heard one")
        await expect(other).to_have_url(first)


async def test_a_list_of_an_earlier_caller_that_arrives_late_closes_no_conversation(
    tmp_path: Path, pages: Pages
) -> None:
    gate, held = asyncio.Event(), asyncio.Event()

    async def hold_what_is_for_ben(route: Route) -> None:
        if "ben" in route.request.headers.get("authorization", ""):
            held.set()
            await gate.wait()
        await route.continue_()

    async with talking(tmp_path, database="sqlite:///threads.db", auth=TWO_KEYS) as one:
        pages.expected += ["status of 401", "status of 403"]
        page = await chat(pages, one, "leaf")
        await enter(page, "ada")
        await expect(page.get_by_role("dialog")).to_have_count(0)
        first, _ = await two_conversations(page)
        await page.route(THREADS, hold_what_is_for_ben)
        await enter(page, "ben")
        await asyncio.wait_for(held.wait(), 30)
        await enter(page, "ada")
        await page.get_by_role("button", name="one", exact=True).click()
        await answered(page, "heard one")
        async with page.expect_response(THREADS):
            gate.set()
        await page.evaluate("new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)))")
        await answered(page, "heard one")
        await expect(page).to_have_url(first)


# --- another answer, and another message -----------------------------------------------------------------------------


@pytest.mark.needs("console-tools")
@pytest.mark.parametrize("on_gateway", [False, True])
async def test_retry_gives_another_answer_and_the_one_before_stays(
    talk: Talking, kept: Talking, pages: Pages, *, on_gateway: bool
) -> None:
    one = kept if on_gateway else talk
    page = await chat(pages, one, "right", "one")
    await answered(page, "right told one")
    await page.get_by_role("button", name="Retry").click()
    await expect(page.get_by_role("textbox", name="Message")).to_be_focused()
    answers = log(page).get_by_role("group", name="Answers")
    await expect(answers).to_contain_text("Answer 2 of 2")
    await answered(page, "right told one")
    assert [text for text in one.llm.requests[-1].user_texts if not text.startswith("one.")] == ["one"]
    await answers.get_by_role("button", name="Previous answer").click()
    await expect(answers).to_contain_text("Answer 1 of 2")
    await expect(answers).to_contain_text("The conversation goes on from answer 2.")
    await expect(answers.get_by_role("button", name="Previous answer")).to_be_focused()
    assert await findings(page) == []
    await send(page, "two")
    await answered(page, "right told two")
    assert [text for text in one.llm.requests[-1].user_texts if "." not in text] == ["one", "two"]
    await expect(page.get_by_role("button", name="Retry")).to_have_count(1)
    await page.reload()
    await answered(page, "right told two")
    await expect(answers).to_contain_text("Answer 2 of 2")
    await page.get_by_text("More", exact=True).click()
    async with page.expect_download() as export:
        await page.get_by_role("button", name="Export JSON").click()
    exported = await (await export.value).path()
    await page.locator("input[type=file][accept*=json]").set_input_files(exported)
    await expect(page.get_by_role("button", name="one", exact=True)).to_have_count(2)
    await expect(answers).to_contain_text("Answer 2 of 2")


async def test_a_retry_after_a_message_of_another_tab_is_refused_and_loses_nothing(kept: Talking, pages: Pages) -> None:
    page = await chat(pages, kept, "leaf", "first")
    await answered(page, "leaf heard first")
    await expect(page).to_have_url(OF_A_CONVERSATION)
    other = await pages.another(page.context, kept.base_url, page.url.partition("/console/")[2])
    await answered(other, "leaf heard first")
    await send(other, "second")
    await answered(other, "leaf heard second")
    pages.expected.append("status of 409")
    await page.get_by_role("button", name="Retry").click()
    await expect(log(page).get_by_role("alert")).to_contain_text("Another message was sent in this thread")
    await page.evaluate("window.dispatchEvent(new Event('focus'))")
    await expect(log(page)).to_contain_text("leaf heard second")


async def test_an_edited_message_of_the_browser_goes_on_in_a_copy(talk: Talking, pages: Pages) -> None:
    page = await chat(pages, talk, "leaf", "alpha")
    await answered(page, "leaf heard alpha")
    await send(page, "beta")
    await answered(page, "leaf heard beta")
    await expect(page).to_have_url(OF_A_CONVERSATION)
    address = page.url
    await page.get_by_role("button", name="Edit").last.click()
    await expect(page.get_by_text("This one stays as it is.")).to_be_visible()
    await send(page, "gamma")
    await answered(page, "leaf heard gamma")
    await expect(log(page)).to_contain_text("leaf heard alpha")
    await expect(log(page)).not_to_contain_text("beta")
    await expect(page).not_to_have_url(address)
    await page.go_back()
    await answered(page, "leaf heard beta")
    await expect(log(page)).not_to_contain_text("gamma")


# --- search ----------------------------------------------------------------------------------------------------------


@pytest.mark.journey
@pytest.mark.needs("console-tools")
@pytest.mark.parametrize("on_gateway", [False, True])
async def test_conversations_are_found_by_what_was_said(
    talk: Talking, kept: Talking, pages: Pages, *, on_gateway: bool
) -> None:
    one = kept if on_gateway else talk
    page = await chat(pages, one, "user", "tell <b>apples</b> and (pears")
    await answered(page, "as number 1")
    await page.get_by_role("button", name="New conversation").click()
    await send(page, "plums")
    await answered(page, "user heard plums")
    box = page.get_by_role("searchbox", name="Search conversations")
    found = page.get_by_role("list", name="Found conversations").get_by_role("button")
    await box.fill("(PEARS")
    await expect(found).to_have_count(1)
    await expect(found).to_contain_text("tell <b>apples</b> and (pears")
    await expect(found.locator("mark").first).to_have_text("(pears")
    assert await findings(page) == []
    await box.press("ArrowDown")
    await expect(found).to_be_focused()
    await page.keyboard.press("ArrowUp")
    await expect(box).to_be_focused()
    await page.keyboard.press("ArrowDown")
    await page.keyboard.press("Enter")
    await expect(log(page)).to_contain_text("apples")
    await box.fill("cherries")
    await expect(page.get_by_text("No conversation matches “cherries”.")).to_be_visible()
    await box.press("Escape")
    await expect(page.get_by_role("button", name="plums", exact=True)).to_be_visible()


async def test_a_search_that_the_gateway_refuses_says_so_and_may_be_repeated(kept: Talking, pages: Pages) -> None:
    page = await chat(pages, kept, "left", "oranges")
    await answered(page, "left told oranges")
    pages.expected.append("status of 503")
    refusal = '{"error": "threads_unavailable", "error_description": "The database cannot be used now."}'
    await page.route(
        "**/threads?*search*",
        lambda route: route.fulfill(status=503, content_type="application/json", body=refusal),
    )
    box = page.get_by_role("searchbox", name="Search conversations")
    await box.fill("orange")
    await expect(page.get_by_role("alert")).to_contain_text("cannot be searched: The database cannot be used now.")
    await page.unroute("**/threads?*search*")
    await box.fill("oranges")
    await expect(page.get_by_role("list", name="Found conversations").get_by_role("button")).to_have_count(1)
    await expect(page.get_by_role("alert")).to_have_count(0)


MARKED = "() => [...(CSS.highlights.get('found') ?? [])].map(String)"


def found_in(page: Page) -> Locator:
    return page.get_by_role("list", name="Found conversations").get_by_role("button")


def search_box(page: Page) -> Locator:
    return page.get_by_role("searchbox", name="Search conversations")


async def colour_of(element: Locator) -> str:
    return str(await element.evaluate("(element) => getComputedStyle(element).color"))


async def said_before(pages: Pages, one: Talking, message: str, again: str = "") -> Page:
    """Return the chat with `leaf`, to which `again` is said, after one with `user` that fills more than a window."""
    page = await chat(pages, one, "user", message)
    await answered(page, f"user heard {message.replace('**', '')}")
    for length in (399, 401):
        await send(page, f"long {length}")
        await answered(page, "word word")
    await expect(log(page).get_by_text(message, exact=True)).not_to_be_in_viewport()
    page = await pages.another(page.context, one.base_url, "#/agents/leaf")
    if again:
        await begin(page)
        await send(page, again)
        await answered(page, f"leaf heard {again}")
    return page


@pytest.mark.needs("console-tools")
@pytest.mark.parametrize("on_gateway", [False, True])
async def test_conversations_of_all_agents_are_found_with_their_agent_and_opened_at_the_place(
    talk: Talking, kept: Talking, pages: Pages, *, on_gateway: bool
) -> None:
    page = await said_before(pages, kept if on_gateway else talk, "about **quinces**", "quinces again")
    await search_box(page).fill("QUINCES")
    found = found_in(page)
    await expect(found).to_have_count(2)
    await expect(found.filter(has_text="Leaf")).to_contain_text("quinces again")
    hit = found.filter(has_text="User")
    await expect(hit.locator(".mark")).to_have_attribute("data-initials", "U")
    assert await colour_of(hit.locator(".speaker")) != await colour_of(
        found.filter(has_text="Leaf").locator(".speaker")
    )
    assert await findings(page) == []
    await search_box(page).press("ArrowDown")
    if not await hit.evaluate("(element) => element === document.activeElement"):
        await page.keyboard.press("ArrowDown")
    await page.keyboard.press("Enter")

    await expect(page).to_have_url(re.compile("/agents/user/conversations/"))
    message = log(page).get_by_role("group", name="Found message")
    await expect(message).to_contain_text("about **quinces**")
    await expect(message).to_be_in_viewport()
    await expect(message).to_be_focused()
    assert await page.evaluate(MARKED) == ["quinces"]
    assert await colour_of(log(page).locator(".reply > .speaker").first) == await colour_of(hit.locator(".speaker"))
    await expect(search_box(page)).to_have_value("QUINCES")  # for the other places
    await expect(hit).to_have_attribute("aria-current", "true")
    await expect(log(page).get_by_text("word word").last).not_to_be_in_viewport()
    assert await findings(page) == []


@pytest.mark.parametrize("on_gateway", [False, True])
async def test_marks_of_a_search_last_until_it_or_the_conversation_is_left(
    talk: Talking, kept: Talking, pages: Pages, *, on_gateway: bool
) -> None:
    page = await said_before(pages, kept if on_gateway else talk, "about rowans", "rowans again")
    await search_box(page).fill("user heard about rowans")
    found = found_in(page)
    await expect(found).to_have_count(1)
    await found.click()
    answer = log(page).get_by_role("group", name="Found answer")
    await expect(answer).to_be_in_viewport()
    assert await page.evaluate(MARKED) == ["user heard about rowans"]
    await log(page).evaluate("(element) => { element.scrollTop = element.scrollHeight; }")
    await expect(answer).not_to_be_in_viewport()
    await found.click()  # the open one again
    await expect(answer).to_be_in_viewport()
    await page.go_back()
    await answered(page, "leaf heard rowans again")
    await expect(log(page).locator(".found")).to_have_count(0)
    assert await page.evaluate(MARKED) == []
    await search_box(page).fill("ROWANS")
    await expect(found).to_have_count(2)
    await found.filter(has_text="Leaf").click()
    message = log(page).get_by_role("group", name="Found message")
    await expect(message).to_be_in_viewport()
    assert await page.evaluate(MARKED) == ["rowans"]
    await search_box(page).press("Escape")
    await expect(message).to_have_count(0)
    assert await page.evaluate(MARKED) == []


@pytest.mark.needs("console-tools")
async def test_a_conversation_of_another_agent_is_found_and_opened_on_a_phone(talk: Talking, pages: Pages) -> None:
    page = await said_before(pages, talk, "medlars")
    await page.set_viewport_size(PHONE)
    await page.get_by_title("Conversations", exact=True).click()
    await search_box(page).fill("medlars")  # leaf has no conversation
    await expect(found_in(page)).to_contain_text("User")
    assert await page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert await findings(page) == []
    await found_in(page).click()
    message = log(page).get_by_role("group", name="Found message")
    await expect(message).to_be_in_viewport()
    await expect(found_in(page)).to_be_hidden()
    assert await page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert await findings(page) == []
    await page.get_by_title("Conversations", exact=True).click()
    await found_in(page).click()
    await expect(message).to_be_in_viewport()
    await expect(found_in(page)).to_be_hidden()


STORE = """(conversations) => new Promise((resolve) => {
  indexedDB.open('pallas-gateway-console').onsuccess = ({target: {result: database}}) => {
    const transaction = database.transaction('conversations', 'readwrite');
    const nothing = {images: [], params: {}, events: [], began: 0, leftOut: 0, error: '', result: null};
    const plain = {...nothing, state: 'complete'};
    for (const [changed, {turns, ...one}] of conversations.entries()) {
      const whole = {...one, title: '', created: 0, changed, turns: turns.map((turn) => ({...plain, ...turn}))};
      transaction.objectStore('conversations').put(whole);
    }
    transaction.oncomplete = () => { database.close(); resolve(); };
  };
})"""


def text_result(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}]}


async def test_an_answer_that_another_one_has_replaced_is_shown_where_it_was_found(talk: Talking, pages: Pages) -> None:
    page = await chat(pages, talk, "left")
    await expect(page.get_by_role("textbox", name="Message")).to_be_visible()
    long = "\n\n".join(f"line {number}" for number in range(300))
    turns = [
        {"id": "t1", "message": "one", "result": text_result(f"{long}\n\nold **pom**elo\n\n{long}")},
        {"id": "t2", "message": "one", "result": text_result("another answer"), "replaces": "t1"},
    ]
    await page.evaluate(STORE, [{"id": "stored", "agent": f"{talk.base_url}/agents/left/mcp", "turns": turns}])
    await page.goto(f"{talk.base_url}/console/#/agents/right")
    await search_box(page).fill("**pom**elo")
    await found_in(page).click()
    answer = log(page).get_by_role("group", name="Found answer")
    await expect(answer).to_contain_text("old pomelo")
    await expect(log(page).get_by_role("group", name="Answers")).to_contain_text("Answer 1 of 2")
    assert await page.evaluate(MARKED) == []  # the words are not in what is shown
    await search_box(page).fill("old")
    await found_in(page).click()
    await expect(log(page).get_by_text("old pomelo")).to_be_in_viewport()
    assert await page.evaluate(MARKED) == ["old"]
    await log(page).get_by_role("button", name="Next answer").click()
    await expect(log(page)).to_contain_text("another answer")
    await send(page, "two")
    await answered(page, "left told two")
    await expect(log(page).get_by_text("left told two")).to_be_in_viewport()
    await expect(answer).to_have_count(0)


async def test_what_was_found_for_an_earlier_caller_is_not_shown_to_another(tmp_path: Path, pages: Pages) -> None:
    grants = {"ada": ["run:agents"], "ben": ["run:agents:leaf", "view:agents"]}
    keys = [{"name": name, "sha256": hash_of(name), "grants": given} for name, given in grants.items()]
    auth = {"tokens": keys, "anonymous": ["view:agents"]}
    async with talking(tmp_path, database="sqlite:///threads.db", auth=auth) as one:
        pages.expected += ["status of 401", "status of 403"]
        page = await chat(pages, one, "user")
        await enter(page, "ada")
        await expect(page.get_by_role("dialog")).to_have_count(0)
        await send(page, "my apricots")
        await answered(page, "heard my apricots")
        await page.goto(f"{one.base_url}/console/#/agents/leaf")
        await search_box(page).fill("apricots")
        await expect(found_in(page)).to_have_count(1)
        await enter(page, "ben")
        await expect(found_in(page)).to_have_count(0)
        await expect(page.get_by_role("dialog")).to_have_count(0)
        await search_box(page).fill("apricots")
        await expect(page.get_by_text("No conversation matches “apricots”.")).to_be_visible()


async def test_500_conversations_are_searched(talk: Talking, pages: Pages) -> None:
    page = await chat(pages, talk, "right")
    await expect(page.get_by_role("textbox", name="Message")).to_be_visible()
    turns = [{"id": f"t{number}", "message": f"message {number}", "state": "stopped"} for number in range(500)]
    agent = f"{talk.base_url}/agents/right/mcp"
    await page.evaluate(STORE, [{"id": f"c{turn['id']}", "agent": agent, "turns": [turn]} for turn in turns])
    await page.reload()
    entries = page.get_by_role("list", name="Conversations").get_by_role("button")
    await expect(entries).to_have_count(500)
    await page.get_by_role("searchbox", name="Search conversations").fill("message 17")
    await expect(page.get_by_role("list", name="Found conversations").get_by_role("button")).to_have_count(11)
