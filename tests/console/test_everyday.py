"""What people do every day in the chat: copy, search, links to conversations, other answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from playwright.async_api import expect

from tests.console.pages import findings
from tests.console.talking import Talking, answered, chat, log, talking, tool

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from playwright.async_api import Page

    from tests.console.pages import Pages

pytestmark = pytest.mark.asyncio(loop_scope="session")
CLIPBOARD = ["clipboard-read", "clipboard-write"]


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
    """Press a button that copies, by the keyboard, and return what it has copied."""
    button = page.get_by_role("button", name=name, exact=True).last
    await button.focus()
    await page.keyboard.press("Enter")
    await expect(button).to_have_text("Copied")
    await expect(page.get_by_role("status").get_by_text("Copied", exact=True).last).to_be_attached()
    return str(await page.evaluate("navigator.clipboard.readText()"))


# --- copy ------------------------------------------------------------------------------------------------------------


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
