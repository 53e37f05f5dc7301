"""The same message to two agents, or to one agent with two sets of parameters, side by side."""

import re
from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio
from playwright.async_api import Locator, Page, expect

from tests.console.pages import Pages, findings
from tests.console.talking import Talking, chat, talking, tool
from tests.support.gateway import until_idle
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")
OF_AGENTS = {"leaf": {"caller_params": ["temperature", "system_append"]}}
LIMITS = {"rules": [{"name": "one-left", "caller": "*", "agent": "left", "per": "agent", "calls_per_minute": 1}]}
WIDER = "() => document.documentElement.scrollWidth > document.documentElement.clientWidth"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def talk(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Talking]:
    options = {
        "prices": {"generic.test-model": {"input": 100, "output": 1000}},
        "limits": LIMITS,
        "database": "sqlite:///threads.db",
    }
    async with talking(tmp_path_factory.mktemp("compare"), of_agents=OF_AGENTS, **options) as served:
        yield served


def side(page: Page, name: str) -> Locator:
    return page.get_by_role("region", name=re.compile(f"^{name}: "))


async def send(page: Page, message: str) -> None:
    await page.get_by_role("textbox", name="Message").fill(message)
    await page.get_by_role("button", name="Send", exact=True).click()


async def send_again(page: Page, talk: Talking) -> None:
    before = len(talk.llm.requests)
    await page.get_by_role("button", name="Send again").click()
    await eventually(lambda: len(talk.llm.requests) == before + 2, what="both requests")


async def compared(pages: Pages, talk: Talking, path: str, message: str = "", *, narrow: bool = False) -> Page:
    page = await pages.open(talk.base_url, f"#/compare/{path}", narrow=narrow)
    if message:
        await send(page, message)
    return page


async def answered(page: Page, **texts: str) -> None:
    """Wait until the calls of sides have ended, and their answers show texts."""
    for name, text in texts.items():
        conversation = side(page, name).get_by_role("log")
        await expect(conversation).to_contain_text(text)  # also of a call that runs
        await expect(side(page, name).get_by_role("button", name="Stop", exact=True)).to_have_count(0)
        await expect(conversation.get_by_role("article").last.get_by_role("button", name="Inspect")).to_be_visible()


@pytest.mark.journey
@pytest.mark.needs("console-tools")
async def test_one_message_goes_to_both_agents_and_each_goes_on_with_its_own_history(
    talk: Talking, pages: Pages
) -> None:
    page = await compared(pages, talk, "leaf/user", "one")
    await answered(page, A="leaf heard one", B="user heard one as number 1")
    await send(page, "two")
    await answered(page, A="leaf heard two", B="user heard two as number 2")
    histories = [[one["content"] for one in request.messages[1:-1]] for request in talk.llm.requests[-2:]]
    assert sorted(histories) == [["one", "leaf heard one"], ["one", "user heard one as number 1"]]
    figures = page.get_by_role("table", name="Comparison of the last answers")
    await expect(figures.get_by_role("columnheader")).to_have_text(["Duration", "LLM turns", "Tokens", "Cost"])
    row = figures.get_by_role("row").nth(1)
    await expect(row).to_have_text(re.compile(r"^A Leaf[\d.,]+ m?s110 tokens in, 5 out[\d.]+$"))
    assert await findings(page) == []

    await page.get_by_role("button", name="Swap").click()
    await expect(side(page, "A")).to_contain_text("user heard two")
    await expect(side(page, "B")).to_contain_text("leaf heard two")
    await send_again(page, talk)
    await expect(side(page, "A").get_by_role("article")).to_have_count(2)
    await answered(page, A="user heard two as number 2", B="leaf heard two")
    await side(page, "B").get_by_role("button", name="Inspect").last.click()
    await expect(page.get_by_role("dialog", name="Call")).to_contain_text("Tokens in")
    await page.keyboard.press("Escape")
    await page.get_by_role("button", name="New comparison").click()
    await expect(page.get_by_role("article")).to_have_count(0)


async def test_one_agent_answers_with_two_sets_of_parameters(talk: Talking, pages: Pages) -> None:
    page = await chat(pages, talk, "leaf")
    await page.get_by_text("More", exact=True).click()
    await page.get_by_role("link", name="Compare").click()
    await expect(page.get_by_role("heading", name="Compare")).to_be_visible()
    for name, temperature in (("A", "0.1"), ("B", "0.9")):
        await side(page, name).get_by_text("Parameters", exact=True).click()
        await side(page, name).get_by_label("temperature").fill(temperature)
    before = len(talk.llm.requests)
    await send(page, "warm")
    await answered(page, A="leaf heard warm", B="leaf heard warm")
    assert sorted(one.body["temperature"] for one in talk.llm.requests[before:]) == [0.1, 0.9]
    await side(page, "B").get_by_label("temperature").fill("7")
    await page.get_by_role("button", name="Send again").click()
    await expect(side(page, "B")).to_contain_text("must be at most 2")
    await expect(page.get_by_role("article")).to_have_count(2)
    await side(page, "B").get_by_label("temperature").fill("0.8")
    await page.get_by_role("link", name="Usage", exact=True).click()
    await expect(page.get_by_role("heading", name="Usage", exact=True)).to_be_visible()
    await page.go_back()
    await expect(side(page, "B")).to_contain_text("leaf heard warm")
    before = len(talk.llm.requests)
    await send_again(page, talk)
    assert sorted(one.body["temperature"] for one in talk.llm.requests[before:]) == [0.1, 0.8]
    await answered(page, A="leaf heard warm", B="leaf heard warm")


async def test_each_side_streams_and_is_stopped_without_the_other(talk: Talking, pages: Pages) -> None:
    page = await compared(pages, talk, "user/leaf", "stream")
    await answered(page, B="leaf heard stream")
    await expect(side(page, "A").get_by_role("heading", name="One")).to_be_visible()
    await expect(page.get_by_role("table", name="Comparison of the last answers")).to_contain_text("running")
    await side(page, "A").get_by_role("button", name="Stop").click()
    await expect(side(page, "A")).to_contain_text("Stopped.")
    await until_idle(talk.served)


async def test_a_question_of_each_side_is_answered_in_its_column(talk: Talking, pages: Pages) -> None:
    page = await compared(pages, talk, "user/user", "wipe x")
    for name, button, told in (("A", "Allow once", "wiped"), ("B", "Decline", "declined")):
        form = side(page, name).get_by_role("form", name="May the tool asking/wipe run")
        await form.get_by_role("button", name=button).click()
        await expect(form).to_have_count(0)
        await answered(page, **{name: told})
    await expect(tool(side(page, "A"), "asking/wipe")).to_contain_text("completed")


async def test_a_limit_of_one_agent_leaves_the_other_alone(talk: Talking, pages: Pages) -> None:
    page = await compared(pages, talk, "left/leaf", "one")
    await answered(page, A="left told one", B="leaf heard one")
    await send(page, "two")
    await answered(page, B="leaf heard two")
    await expect(side(page, "A")).to_contain_text("The limit “one-left” is reached.")
    await expect(page.get_by_role("table", name="Comparison of the last answers")).to_contain_text("failed")
    await send(page, "three")
    await answered(page, B="leaf heard three")
    await expect(side(page, "A").get_by_role("article")).to_have_count(2)


async def test_another_agent_begins_a_new_comparison_and_a_broken_one_takes_no_message(
    talk: Talking, pages: Pages
) -> None:
    page = await compared(pages, talk, "leaf/user", "one")
    await answered(page, A="leaf heard one", B="user heard one")
    await side(page, "B").get_by_label("Agent B").select_option("broken")
    await expect(page.get_by_role("article")).to_have_count(0)
    await expect(side(page, "B")).to_contain_text("the key is missing")
    await side(page, "A").get_by_label("Agent A").select_option("broken")
    await expect(page.get_by_role("button", name="Send", exact=True)).to_be_disabled()


async def test_answers_are_rated_and_kept_as_conversations_of_the_browser(talk: Talking, pages: Pages) -> None:
    page = await compared(pages, talk, "leaf/user", "keep me")
    await answered(page, A="leaf heard keep me", B="user heard keep me")
    good = side(page, "A").get_by_role("button", name="Good answer")
    await good.click()
    await expect(good).to_have_attribute("aria-pressed", "true")
    await page.goto(f"{talk.base_url}/console/#/agents/leaf")
    kept = page.get_by_role("list", name="In this browser").get_by_role("button", name="keep me")
    await kept.click()
    await expect(page.get_by_role("button", name="Good answer")).to_have_attribute("aria-pressed", "true")


@pytest.mark.needs("console-tools")
async def test_on_a_phone_the_sides_are_below_one_another(talk: Talking, pages: Pages) -> None:
    page = await compared(pages, talk, "leaf/user", "long 30", narrow=True)
    await answered(page, A="leaf heard long 30", B="word")
    boxes = [await side(page, name).bounding_box() for name in ("A", "B")]
    assert boxes[0] is not None
    assert boxes[1] is not None
    assert boxes[1]["y"] >= boxes[0]["y"] + boxes[0]["height"]
    assert not await page.evaluate(WIDER)
    assert await findings(page) == []
