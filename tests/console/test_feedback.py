"""Ratings of answers in the console, kept where their conversation is, and their export as cases."""

import json
import re
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import pytest_asyncio
from playwright.async_api import Locator, Page, Route, expect

from tests.console.pages import Pages, findings
from tests.console.talking import NOTHING_IS_STORED, Talking, answered, chat, log, send, talking

pytestmark = pytest.mark.asyncio(loop_scope="session")
KINDS: dict[str, dict[str, Any]] = {"browser": {}, "gateway": {"database": "sqlite:///threads.db"}}
CASES = (Path(__file__).parents[2] / "docs" / "use" / "cases.md").read_text(encoding="utf-8")
[SCHEMA] = map(json.loads, re.findall(r"^```json\n(.*?)^```", CASES, re.MULTILINE | re.DOTALL))


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=KINDS)
async def talk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Talking]:
    path = tmp_path_factory.mktemp(request.param)
    async with talking(path, **KINDS[request.param]) as served:
        yield served


def rating(within: Page | Locator, name: str) -> Locator:
    return within.get_by_role("button", name=f"{name} answer")


async def rated(page: Page, name: str, *, nth: int = 0) -> None:
    await expect(rating(page, name).nth(nth)).to_have_attribute("aria-pressed", "true")


@pytest.mark.journey
@pytest.mark.needs("console-tools")
async def test_an_answer_is_rated_with_a_note_and_both_are_there_after_a_reload(talk: Talking, pages: Pages) -> None:
    page = await chat(pages, talk, "leaf", "one")
    await answered(page, "leaf heard one")
    await expect(rating(page, "Good")).to_have_attribute("aria-pressed", "false")
    await rating(page, "Good").click()
    await rated(page, "Good")
    await rating(page, "Bad").click()
    await rated(page, "Bad")
    await expect(rating(page, "Good")).to_have_attribute("aria-pressed", "false")
    await page.get_by_role("button", name="Add a note").click()
    note = page.get_by_role("textbox", name="Note", exact=True)
    await expect(note).to_be_focused()
    await note.fill("x" * 4001)
    await expect(note).to_have_value("x" * 4000)
    await note.fill("<b>The year</b> is wrong.")
    assert await findings(page) == []
    await page.get_by_role("button", name="Save the note").click()
    await expect(log(page)).to_contain_text("<b>The year</b> is wrong.")
    await page.reload()
    await rated(page, "Bad")
    await expect(log(page)).to_contain_text("<b>The year</b> is wrong.")

    await page.get_by_role("button", name="Change the note").click()
    await note.press("Escape")
    await expect(note).to_be_hidden()
    await rating(page, "Bad").click()
    await expect(rating(page, "Bad")).to_have_attribute("aria-pressed", "false")
    await expect(log(page)).not_to_contain_text("The year")
    await page.reload()
    await answered(page, "leaf heard one")
    await expect(rating(page, "Bad")).to_have_attribute("aria-pressed", "false")
    assert await findings(page) == []


async def test_a_call_without_an_answer_is_not_rated(talk: Talking, pages: Pages) -> None:
    page = await chat(pages, talk, "user", "hang")
    await expect(page.get_by_text("last event")).to_be_visible()
    await expect(rating(page, "Good")).to_have_count(0)
    await page.get_by_role("button", name="Stop").click()
    await expect(page.get_by_text("Stopped.")).to_be_visible()
    await expect(rating(page, "Good")).to_have_count(0)


async def cases_of(page: Page, button: str) -> list[dict[str, Any]]:
    await page.get_by_text("More", exact=True).click()
    await page.get_by_role("button", name="Rated answers").click()
    dialog = page.get_by_role("dialog", name="Rated answers as cases (JSON)")
    async with page.expect_download() as export:
        await dialog.get_by_role("button", name=button).click()
    text = (await (await export.value).path()).read_text()
    await dialog.get_by_role("button", name="Close").click()
    document = json.loads(text)
    jsonschema.validate(document, SCHEMA)
    assert (document["format"], document["version"]) == ("pallas-gateway-cases", 1)
    return list(document["cases"])


async def test_rated_answers_are_exported_as_cases_of_one_agent_and_of_all(talk: Talking, pages: Pages) -> None:
    page = await chat(pages, talk, "root", "go")
    await answered(page, "root told go")
    await rating(page, "Good").click()
    await rated(page, "Good")
    await page.goto(f"{talk.base_url}/console/#/agents/right")
    await page.get_by_role("button", name="New conversation").click()
    await send(page, "first")
    await answered(page, "right told first")
    await send(page, "second")
    await answered(page, "right told second")
    await rating(page, "Bad").last.click()
    await rated(page, "Bad", nth=1)
    await page.get_by_role("button", name="Add a note").click()
    await page.get_by_role("textbox", name="Note", exact=True).fill("Too short.")
    await page.get_by_role("button", name="Save the note").click()
    await expect(log(page)).to_contain_text("Too short.")
    await page.reload()
    await rated(page, "Bad", nth=1)

    [case] = await cases_of(page, "Export those of Right")
    first = {"role": "user", "content": "first"}
    assert [case["history"][0], case["history"][1]["role"], len(case["history"])] == [first, "assistant", 2]
    assert (case["agent"], case["message"], case["rating"], case["note"]) == ("right", "second", "bad", "Too short.")
    assert (case["output"][:17], case["tools"], case["params"]) == ("right told second", ["leaf/send_message"], {})
    assert case["model"]
    everything = await cases_of(page, "Export those of all agents")
    assert {("root", "good"), ("right", "bad")} <= {(one["agent"], one["rating"]) for one in everything}
    assert case in everything


@pytest.mark.needs("console-tools")
async def test_where_no_answer_is_rated_the_export_says_so(talk: Talking, pages: Pages) -> None:
    page = await chat(pages, talk, "left", "one")
    await answered(page, "left told one")
    await page.get_by_text("More", exact=True).click()
    await page.get_by_role("button", name="Rated answers").click()
    dialog = page.get_by_role("dialog", name="Rated answers as cases (JSON)")
    await dialog.get_by_role("button", name="Export those of Left").click()
    await expect(dialog.get_by_role("status")).to_have_text("No answer is rated yet.")
    assert await findings(page) == []


async def test_a_rating_that_cannot_be_stored_is_not_shown_as_stored(talk: Talking, pages: Pages) -> None:
    page = await chat(pages, talk, "user", "lost")
    await answered(page, "user heard lost")
    pages.expected.append("Failed to load resource")
    await page.route("**/feedback", lambda route: route.abort())
    await page.evaluate(NOTHING_IS_STORED)
    await rating(page, "Good").click()
    await expect(log(page).get_by_role("alert")).to_contain_text("The rating cannot be stored")
    await expect(rating(page, "Good")).to_have_attribute("aria-pressed", "false")


async def test_ratings_on_the_gateway_are_seen_in_every_browser_and_not_copied(tmp_path: Path, pages: Pages) -> None:
    async with talking(tmp_path, **KINDS["gateway"]) as talk:
        page = await chat(pages, talk, "leaf", "one")
        await answered(page, "leaf heard one")
        await rating(page, "Good").click()
        await rated(page, "Good")
        await send(page, "two")
        await answered(page, "leaf heard two")
        other = await pages.open(talk.base_url, "#/agents/leaf")
        await rated(other, "Good")
        await other.get_by_role("button", name="Add a note").first.click()
        await other.get_by_role("textbox", name="Note").fill("As I hoped.")
        await other.get_by_role("checkbox", name="The owner of the agent may read this note").check()
        await other.get_by_role("button", name="Save the note").click()
        await expect(log(other)).to_contain_text("As I hoped. The owner of the agent may read this.")
        await page.get_by_role("button", name="Edit").last.click()
        await page.get_by_role("textbox", name="Message").fill("changed")
        await page.get_by_role("button", name="Send").click()
        await answered(page, "leaf heard changed")
        await expect(rating(page, "Good").first).to_have_attribute("aria-pressed", "false")

        async def refuse(route: Route) -> None:
            await route.fulfill(status=503, json={"error": "threads_unavailable", "error_description": "Try again."})

        pages.expected.append("status of 503")
        await page.route("**/threads?rated=true**", refuse)
        await page.get_by_text("More", exact=True).click()
        await page.get_by_role("button", name="Rated answers").click()
        dialog = page.get_by_role("dialog", name="Rated answers as cases (JSON)")
        await dialog.get_by_role("button", name="Export those of all agents").click()
        await expect(dialog.get_by_role("alert")).to_contain_text("The rated answers cannot be read: Try again.")
