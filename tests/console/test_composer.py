"""Where messages are written: how much of the screen it takes, which files it takes, and when it gets the focus."""

import base64
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import FilePayload, Locator, Page, ViewportSize, expect

from tests.console.pages import Pages, findings
from tests.console.talking import Talking, answered, chat, log, send, talking

pytestmark = pytest.mark.asyncio(loop_scope="session")

PHONE: ViewportSize = {"width": 390, "height": 844}
PHONE_WITH_KEYBOARD: ViewportSize = {"width": 390, "height": 420}
ONE_LINE = 48


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def talk(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Talking]:
    reading = {"leaf": {"model_capabilities": {"vision": True, "documents": True}}}
    async with talking(tmp_path_factory.mktemp("composer"), of_agents=reading) as served:
        yield served


def box(page: Page) -> Locator:
    return page.get_by_role("textbox", name="Message")


async def height(one: Locator) -> float:
    bounds = await one.bounding_box()
    assert bounds
    return bounds["height"]


FITTED = """([width, height]) => innerWidth === width && innerHeight === height
  && document.querySelector('.conversations').open === matchMedia('(min-width: 56rem)').matches"""


async def resize(page: Page, size: ViewportSize) -> None:
    """Resize the page, and wait until its list of conversations has been opened or closed for the new width."""
    await page.set_viewport_size(size)
    await page.wait_for_function(FITTED, arg=[*size.values()])


# --- layout ----------------------------------------------------------------------------------------------------------


async def test_a_phones_screen_is_left_to_the_conversation(talk: Talking, pages: Pages) -> None:
    page = await chat(pages, talk, "user", "long 300")
    await answered(page, "word")
    await resize(page, PHONE)
    assert await height(log(page)) >= 0.7 * PHONE["height"]
    assert await height(page.get_by_role("banner")) <= ONE_LINE + 1
    await resize(page, PHONE_WITH_KEYBOARD)
    await expect(box(page)).to_be_in_viewport(ratio=1)
    await expect(page.get_by_role("button", name="Send")).to_be_in_viewport(ratio=1)
    await expect(page.get_by_role("button", name="Inspect")).to_be_in_viewport(ratio=1)  # the end of the conversation
    assert await height(log(page)) >= 0.5 * PHONE_WITH_KEYBOARD["height"]


async def test_the_box_is_one_line_that_grows_with_the_text(talk: Talking, pages: Pages) -> None:
    page = await chat(pages, talk, "user")
    await expect(box(page)).to_be_visible()
    sizes: tuple[ViewportSize, ...] = ({"width": 1280, "height": 800}, PHONE, PHONE_WITH_KEYBOARD)
    for size in sizes:
        await resize(page, size)
        await box(page).fill("")
        assert await height(box(page)) <= ONE_LINE
        await box(page).fill("one\ntwo\nthree")
        assert await height(box(page)) > ONE_LINE
        await box(page).fill("line\n" * 200)
        assert 0.3 * size["height"] <= await height(box(page)) <= 0.41 * size["height"]
        await expect(page.get_by_role("button", name="Send")).to_be_in_viewport(ratio=1)


@pytest.mark.needs("console-tools")
async def test_the_views_are_one_row_of_a_phone_that_shows_where_one_is(talk: Talking, pages: Pages) -> None:
    page = await pages.open(talk.base_url, "#/usage", narrow=True)
    await expect(page.get_by_role("heading", name="Usage", exact=True)).to_be_visible()
    await expect(page.get_by_role("link", name="Usage", exact=True)).to_be_in_viewport(ratio=1)
    await page.get_by_role("link", name="Gateway", exact=True).click()
    await expect(page.get_by_role("heading", name="Gateway", exact=True)).to_be_visible()
    await expect(page.get_by_role("link", name="Gateway", exact=True)).to_be_in_viewport(ratio=1)
    assert await page.evaluate("document.documentElement.scrollWidth") <= 360
    assert await findings(page) == []


@pytest.mark.needs("console-tools")
async def test_conversations_open_above_a_phones_chat_and_close_with_a_choice(talk: Talking, pages: Pages) -> None:
    page = await chat(pages, talk, "user", "first", narrow=True)
    await answered(page, "user heard first")
    summary = page.locator("summary", has_text="Conversations (1)")
    before = await log(page).bounding_box()
    await summary.click()
    await expect(page.get_by_role("button", name="first", exact=True)).to_be_visible()
    await expect(log(page)).to_be_hidden()  # what is covered is not reached by the keyboard
    assert await findings(page) == []
    await page.get_by_role("button", name="New conversation").click()
    await expect(log(page)).to_contain_text("Write a message to")
    await expect(log(page)).to_be_visible()  # the list closes a moment later
    assert await log(page).bounding_box() == before
    await summary.click()
    await page.get_by_role("button", name="first", exact=True).click()
    await answered(page, "user heard first")


async def test_parameters_that_are_wrong_are_shown_when_the_message_is_sent(talk: Talking, pages: Pages) -> None:
    page = await chat(pages, talk, "leaf")
    more = page.get_by_role("button", name="Files and parameters")
    await expect(page.get_by_text("Parameters", exact=True)).to_be_hidden()
    await more.click()
    await page.get_by_text("Parameters", exact=True).click()
    await page.get_by_label("temperature").fill("3")
    await more.click()
    await expect(page.get_by_label("temperature")).to_be_hidden()
    await expect(page.get_by_text("1 parameter is set")).to_be_visible()
    await send(page, "warm")
    await expect(page.get_by_text("at most 2")).to_be_visible()


# --- files -----------------------------------------------------------------------------------------------------------

TABLE = "".join(f"{number},value\n" for number in range(500))
CSV: FilePayload = {"name": "numbers.csv", "mimeType": "text/csv", "buffer": TABLE.encode()}
SENT = f"Add them up\n\nAttached file: numbers.csv\n```csv\n{TABLE}```"


def chip(within: Page | Locator, name: str) -> Locator:
    return within.get_by_role("list", name="Files").locator("summary", has_text=name)


@pytest.mark.journey
@pytest.mark.needs("console-tools")
async def test_a_text_file_is_sent_as_text_and_shown_as_a_file(talk: Talking, pages: Pages) -> None:
    page = await chat(pages, talk, "leaf")
    notes: FilePayload = {"name": "notes.md", "mimeType": "", "buffer": b"# Notes"}
    await page.get_by_label("Add files").set_input_files([CSV, notes])
    await expect(chip(page, "numbers.csv")).to_contain_text("5 KB")
    await page.get_by_role("button", name="Remove notes.md").click()
    await expect(chip(page, "notes.md")).to_have_count(0)
    assert await findings(page) == []
    await send(page, "Add them up")
    await answered(page, "leaf heard Add them up")
    assert talk.llm.requests[-1].last_user_text == SENT
    await expect(page.get_by_role("list", name="Files")).to_have_count(1)  # of the message that was sent
    await expect(page.locator(".by-you")).not_to_contain_text("250,value")
    await page.reload()
    await expect(page.locator(".message")).to_have_text("Add them up")
    await chip(log(page), "numbers.csv").click()
    await expect(page.locator(".by-you").get_by_role("group", name="numbers.csv", exact=True)).to_contain_text(
        "250,value"
    )
    assert await findings(page) == []


async def test_a_file_is_in_exports_folded_and_in_the_message_that_is_edited(talk: Talking, pages: Pages) -> None:
    page = await chat(pages, talk, "leaf")
    await page.get_by_label("Add files").set_input_files([CSV])
    await expect(page.get_by_role("button", name="Remove numbers.csv")).to_be_visible()
    await page.get_by_role("button", name="Send").click()  # a file is a message
    await answered(page, "leaf heard Attached file: numbers.csv")
    await page.get_by_text("More", exact=True).click()
    async with page.expect_download() as downloading:
        await page.get_by_role("button", name="Export Markdown").click()
    markdown = (await (await downloading.value).path()).read_text()
    assert f"<details><summary>numbers.csv</summary>\n\n```csv\n{TABLE}```\n\n</details>" in markdown
    await page.get_by_role("button", name="Edit").click()
    await expect(page.get_by_role("button", name="Remove numbers.csv")).to_be_visible()
    await send(page, "Add them up")
    await answered(page, "leaf heard Add them up")
    assert talk.llm.requests[-1].last_user_text == SENT


@pytest.mark.needs("console-tools")
async def test_a_pdf_is_sent_to_a_model_that_takes_documents_and_again_with_the_next_message(
    talk: Talking, pages: Pages
) -> None:
    report: FilePayload = {"name": "Größe.pdf", "mimeType": "application/pdf", "buffer": b"%PDF-1.7 \xff\xfe"}
    page = await chat(pages, talk, "user")
    await page.get_by_label("Add files").set_input_files([report])
    refusal = "“Größe.pdf” is a PDF. The model of this agent accepts no documents."
    await expect(page.get_by_role("alert")).to_have_text(refusal)
    page = await chat(pages, talk, "leaf")
    await page.get_by_label("Add files").set_input_files([report, report])
    await page.get_by_role("button", name="Remove document 2").click()
    await expect(documents(page)).to_have_text(["Größe.pdf"])
    assert await findings(page) == []
    await send(page, "Read it")
    await answered(page, "leaf heard Read it")
    await page.reload()
    await expect(documents(page.locator(".by-you"))).to_have_text(["Größe.pdf"])
    await send(page, "Again")
    await answered(page, "leaf heard Again")
    sent = [("Größe.pdf", base64.b64encode(report["buffer"]).decode())]
    assert [request.documents for request in talk.llm.requests[-2:]] == [sent, sent]


def documents(within: Page | Locator) -> Locator:
    return within.get_by_role("list", name="Images and documents").locator(".file-name")


async def test_a_file_that_is_dropped_on_the_conversation_is_added(talk: Talking, pages: Pages) -> None:
    page = await chat(pages, talk, "leaf")
    drop = """(log, type) => {
      const transfer = new DataTransfer();
      transfer.items.add(new File(['a: 1'], 'a.yaml'));
      const event = new DragEvent(type, {dataTransfer: transfer, bubbles: true, cancelable: true});
      return log.dispatchEvent(event);
    }"""
    await expect(box(page)).to_be_focused()  # as the page begins to listen
    assert not await log(page).evaluate(drop, "dragover")
    assert not await log(page).evaluate(drop, "drop")
    await expect(chip(page, "a.yaml")).to_be_visible()


async def test_a_file_that_the_gateway_would_refuse_is_refused(tmp_path: Path, pages: Pages) -> None:
    options: dict[str, Any] = {"max_body_bytes": 100_000, "database": "sqlite:///threads.db"}
    async with talking(tmp_path, of_agents={"leaf": {"examples": ["Rustle"]}}, **options) as talk:
        page = await chat(pages, talk, "leaf")
        await expect(page.get_by_role("button", name="Rustle")).to_be_visible()  # it comes with the limit
        large: FilePayload = {"name": "large.txt", "mimeType": "text/plain", "buffer": b"x" * 90_000}
        small: FilePayload = {"name": "small.txt", "mimeType": "text/plain", "buffer": b"x" * 50_000}
        await page.get_by_label("Add files").set_input_files([large, small, small])
        refusals = page.get_by_role("alert")
        await expect(refusals).to_contain_text("“large.txt” does not fit: a request may have 0.1 MB")
        await expect(refusals).to_contain_text("“small.txt” does not fit")
        await expect(page.get_by_role("list", name="Files").get_by_role("listitem")).to_have_count(1)
        await send(page, "Read")
        await answered(page, "leaf heard Read")
        await page.reload()
        await expect(page.locator(".message")).to_have_text("Read")
        await expect(chip(log(page), "small.txt")).to_contain_text("50 KB")


# --- focus -----------------------------------------------------------------------------------------------------------


async def test_the_box_has_the_focus_when_a_person_opens_a_conversation(talk: Talking, pages: Pages) -> None:
    page = await chat(pages, talk, "user", "first")  # by a link
    await expect(box(page)).to_be_focused()
    await answered(page, "user heard first")
    await page.get_by_role("link", name="Agents", exact=True).click()
    await expect(page.get_by_role("main")).to_be_focused()
    await page.get_by_role("link", name="User", exact=True).click()
    await expect(box(page)).to_be_focused()
    await page.get_by_role("button", name="New conversation").click()
    await expect(box(page)).to_be_focused()
    await page.get_by_role("button", name="first", exact=True).click()
    await expect(box(page)).to_be_focused()
    await page.get_by_role("link", name="Details of User").click()
    await expect(page.get_by_role("main")).to_be_focused()


async def test_the_box_does_not_open_the_keyboard_of_a_touch_screen(talk: Talking, pages: Pages) -> None:
    page = await pages.open(talk.base_url, "", narrow=True, has_touch=True, is_mobile=True)
    assert await page.evaluate("matchMedia('(pointer: coarse)').matches")
    await page.get_by_role("link", name="User", exact=True).click()
    await expect(log(page)).to_contain_text("Write a message to")
    await expect(page.get_by_role("main")).to_be_focused()


async def test_the_box_takes_the_focus_from_no_dialog(talk: Talking, pages: Pages) -> None:
    page = await pages.open(talk.base_url)
    await page.get_by_role("button", name="Use a key").click()
    await expect(page.get_by_label("Key")).to_be_focused()
    await page.evaluate("location.hash = '#/agents/user'")
    await expect(log(page)).to_contain_text("Write a message to")
    await expect(page.get_by_label("Key")).to_be_focused()
