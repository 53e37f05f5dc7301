"""Where messages are written: how much of the screen it takes, which files it takes, and when it gets the focus."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from playwright.async_api import expect

from tests.console.pages import findings
from tests.console.talking import Talking, answered, chat, log, send, talking

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from playwright.async_api import Locator, Page, ViewportSize

    from tests.console.pages import Pages

pytestmark = pytest.mark.asyncio(loop_scope="session")

PHONE: ViewportSize = {"width": 390, "height": 844}
PHONE_WITH_KEYBOARD: ViewportSize = {"width": 390, "height": 420}
ONE_LINE = 48


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def talk(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Talking]:
    async with talking(tmp_path_factory.mktemp("composer")) as served:
        yield served


def box(page: Page) -> Locator:
    return page.get_by_role("textbox", name="Message")


async def height(one: Locator) -> float:
    bounds = await one.bounding_box()
    assert bounds
    return bounds["height"]


async def resize(page: Page, size: ViewportSize) -> None:
    await page.set_viewport_size(size)
    await page.wait_for_function(
        "([width, height]) => innerWidth === width && innerHeight === height", arg=[*size.values()]
    )


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


async def test_the_views_are_one_row_of_a_phone_that_shows_where_one_is(talk: Talking, pages: Pages) -> None:
    page = await pages.open(talk.base_url, "#/usage", narrow=True)
    await expect(page.get_by_role("heading", name="Usage")).to_be_visible()
    await expect(page.get_by_role("link", name="Usage", exact=True)).to_be_in_viewport(ratio=1)
    await page.get_by_role("link", name="Gateway", exact=True).click()
    await expect(page.get_by_role("heading", name="Gateway", exact=True)).to_be_visible()
    await expect(page.get_by_role("link", name="Gateway", exact=True)).to_be_in_viewport(ratio=1)
    assert await page.evaluate("document.documentElement.scrollWidth") <= 360
    assert await findings(page) == []


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
