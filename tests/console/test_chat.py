"""The chat in a real browser before a real gateway: activity, questions, stopping, blocking, and what is hostile."""

import asyncio
import base64
import json
import re
from collections.abc import AsyncGenerator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import FilePayload, Route, expect

from tests.console.pages import Pages, findings
from tests.console.talking import NOTHING_IS_STORED, Talking, answered, begin, chat, log, outline, send, talking, tool
from tests.support.gateway import Agent, module_source, until_idle

pytestmark = pytest.mark.asyncio(loop_scope="session")
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)

OVERFLOWING = """() => {
  const page = document.documentElement;
  const sideways = ['.conversations', '.log', '.composer'].filter((name) => {
    const { scrollWidth, clientWidth } = document.querySelector(name);
    return scrollWidth > clientWidth;
  });
  const grows = page.scrollHeight > page.clientHeight || page.scrollWidth > page.clientWidth;
  return grows ? ['page', ...sideways] : sideways;
}"""
TRANSFER = """(box, [type, key, picture]) => {
  const transfer = new DataTransfer();
  transfer.items.add(new File([Uint8Array.from(picture)], 'dot.png', {type: 'image/png'}));
  const init = {[key]: transfer, bubbles: true, cancelable: true};
  box.dispatchEvent(type === 'drop' ? new DragEvent(type, init) : new ClipboardEvent(type, init));
}"""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def talk(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Talking]:
    async with talking(tmp_path_factory.mktemp("chat")) as served:
        yield served


# --- activity --------------------------------------------------------------------------------------------------------


@pytest.mark.journey
@pytest.mark.needs("console-tools")
async def test_a_nested_call_with_parallel_peers_is_drawn_as_its_tree(talk: Talking, pages: Pages) -> None:
    page = await chat(pages, talk, "root", "go")
    await answered(page, "root told go")
    peer = "{}/send_message".format
    lines = [line.partition(" told")[0].partition(" heard")[0] for line in await outline(page)]
    assert lines == [
        peer("left"), f"  {peer('leaf')}", "    leaf", "  left",
        peer("right"), f"  {peer('leaf')}", "    leaf", f"  {peer('leaf')}", "    leaf", "  right",
        peer("right"), f"  {peer('leaf')}", "    leaf", f"  {peer('leaf')}", "    leaf", "  right",
        "root",
    ]  # fmt: skip
    right = tool(log(page), peer("right")).nth(1)
    await expect(tool(right, peer("leaf")).first).to_contain_text("leaf heard go.r2.y")
    await expect(right).to_contain_text("completed")
    await expect(log(page)).to_contain_text(
        re.compile(r"2 LLM turns · .*tokens in, .* out with nested calls · [\d.]+ m?s")
    )
    await expect(log(page)).not_to_contain_text("endTurn")
    assert await findings(page) == []


async def test_stop_ends_the_call_of_all_agents(talk: Talking, pages: Pages) -> None:
    entered = len(talk.gate.entered)
    page = await chat(pages, talk, "root", "hang")
    await talk.gate.wait_for_entered(entered + 1)
    await expect(page.get_by_text("last event")).to_be_visible()
    await page.get_by_role("button", name="Stop").click()
    await expect(page.get_by_text("Stopped.")).to_be_visible()
    await expect(page.locator(".call-facts")).to_have_count(0)  # an empty one indents the buttons
    await expect(tool(log(page), "leaf/send_message")).to_contain_text("no result")
    await until_idle(talk.served)


async def test_text_is_shown_while_the_model_writes_it_and_the_reader_keeps_the_place(
    talk: Talking, pages: Pages
) -> None:
    page = await chat(pages, talk, "user", "long 2000")
    await answered(page, "word")
    await send(page, "stream")
    await expect(page.get_by_role("heading", name="One")).to_be_in_viewport()
    await expect(page.get_by_role("textbox", name="Message")).to_be_focused()
    await log(page).evaluate("log => { log.scrollTop = 30; }")
    talk.gate.let_through(2)
    await expect(log(page).get_by_role("listitem").filter(has_text="four")).to_be_visible()
    await answered(page, "three")
    assert await log(page).evaluate("log => log.scrollTop") == 30


# --- questions -------------------------------------------------------------------------------------------------------


@pytest.mark.journey
async def test_a_form_is_checked_and_answered(talk: Talking, pages: Pages) -> None:
    page = await chat(pages, talk, "user", "name")
    form = page.get_by_role("form", name="asking: What is your name?")
    await expect(form.get_by_label("age")).to_have_value("7")
    await form.get_by_role("button", name="Submit").click()
    await expect(form).to_contain_text("required")
    await form.get_by_label("name").fill("x" * 21)
    await form.get_by_role("button", name="Submit").click()
    await expect(form).to_contain_text("At most 20 characters")
    await form.get_by_label("name").fill("Ada")
    await form.get_by_role("button", name="Submit").click()
    await answered(page, "Ada")
    await expect(page.get_by_role("textbox", name="Message")).to_be_focused()
    await expect(log(page)).to_contain_text("You submitted name: Ada, age: 7.")
    assert talk.asking.answers[-1] == {"action": "accept", "content": {"name": "Ada", "age": 7}}


async def test_a_question_takes_the_focus_unless_the_reader_writes(talk: Talking, pages: Pages) -> None:
    page = await chat(pages, talk, "user", "name")
    form = page.get_by_role("form", name="asking: What is your name?")
    await expect(form).to_be_focused()
    await form.get_by_role("button", name="Decline").click()
    await answered(page, "You declined “asking: What is your name?”.")
    written = asyncio.Event()

    async def hold(route: Route) -> None:
        if "tools/call" in (route.request.post_data or ""):  # the page asks for the agent's tools as well
            await written.wait()
        await route.continue_()

    await page.route("**/agents/user/mcp", hold)
    await send(page, "name")
    await page.get_by_role("textbox", name="Message").press_sequentially("next")
    written.set()
    await expect(form).to_be_visible()
    await expect(page.get_by_role("textbox", name="Message")).to_be_focused()
    await form.get_by_role("button", name="Decline").click()
    await expect(page.get_by_text("You declined “asking: What is your name?”.")).to_have_count(2)
    await until_idle(talk.served)


async def test_an_answer_that_the_gateway_refuses_may_be_given_again(talk: Talking, pages: Pages) -> None:
    page = await chat(pages, talk, "user", "name")
    form = page.get_by_role("form", name="asking: What is your name?")
    await form.get_by_label("name").fill("Ada")

    async def too_long(route: Route) -> None:
        request = json.loads(route.request.post_data or "")
        (response,) = request["params"]["inputResponses"].values()
        response["content"]["name"] = "x" * 21
        await route.continue_(post_data=request)

    await page.route("**/agents/user/mcp", too_long, times=1)
    pages.expected.append("status of 400")
    await form.get_by_role("button", name="Submit").click()
    await expect(form.get_by_role("alert")).to_contain_text("must have at most 20 characters")
    await form.get_by_role("button", name="Submit").click()
    await answered(page, "Ada")


@pytest.mark.needs("console-tools")
async def test_parallel_questions_are_answered_apart_and_a_page_shows_its_host(talk: Talking, pages: Pages) -> None:
    page = await chat(pages, talk, "user", "both")
    form = page.get_by_role("form", name="What is your name?")
    payment = page.get_by_role("form", name="Consent to paying 100 EUR")

    async def submit() -> None:
        await form.get_by_label("name").fill("Bob")
        await form.get_by_role("button", name="Submit").click()
        await expect(form).to_have_count(0)

    async def decline() -> None:
        link = payment.get_by_role("link", name="Open pay.example in a new tab")
        await expect(link).to_have_attribute("href", "https://pay.example/consent?token=url-secret")
        assert await findings(page) == []
        await payment.get_by_role("button", name="Decline").click()
        await expect(payment).to_have_count(0)

    await expect(form.or_(payment).first).to_be_visible()
    is_payment_open = await payment.count() > 0  # the tool that asks later may ask only once the other was answered
    for answer in (decline, submit) if is_payment_open else (submit, decline):
        await answer()
    await answered(page, "Bob")
    assert sorted(one["action"] for one in talk.asking.answers[-2:]) == ["accept", "decline"]


@pytest.mark.journey
async def test_a_tool_runs_after_its_approval(talk: Talking, pages: Pages) -> None:
    page = await chat(pages, talk, "boss", "wipe /tmp")
    form = page.get_by_role("form", name="user: May the tool asking/wipe run")
    await expect(form).to_contain_text('"path": "/tmp"')
    wipe = tool(log(page), "asking/wipe")
    await expect(wipe).to_contain_text("waiting for you")
    await form.get_by_role("button", name="Allow once").click()
    await answered(page, "wiped /tmp")
    await expect(wipe).to_contain_text("completed")
    line = page.get_by_text("You allowed asking/wipe once.")
    await expect(line).to_be_visible()
    assert await wipe.evaluate("tool => tool.firstElementChild.textContent") == "You allowed asking/wipe once."
    await page.get_by_role("button", name="Inspect").click()
    await expect(page.get_by_role("dialog").get_by_text("You allowed asking/wipe once.", exact=True)).to_be_visible()
    await page.keyboard.press("Escape")
    await page.reload()
    await answered(page, "wiped /tmp")
    await expect(line).to_be_visible()
    await send(page, "wipe /home")
    await expect(form.get_by_role("button", name="Allow for this call")).to_be_visible()
    await form.get_by_role("button", name="Decline").click()
    await answered(page, "the caller did not give it")
    await page.get_by_role("button", name="Inspect").last.click()
    row = page.get_by_role("dialog").get_by_role("row").filter(has_text="waited for you")
    await expect(row).to_have_count(1)


async def test_stop_ends_a_call_that_waits_for_an_answer(talk: Talking, pages: Pages) -> None:
    page = await chat(pages, talk, "user", "name")
    await expect(page.get_by_role("form", name="What is your name?")).to_be_visible()
    await page.get_by_role("button", name="Stop").click()
    await expect(page.get_by_text("Stopped.")).to_be_visible()
    await until_idle(talk.served)
    assert len(talk.served.gateway.sessions.waiting_calls) == 0


async def test_stop_at_an_approval_answers_nothing_and_asks_no_model(talk: Talking, pages: Pages) -> None:
    page = await chat(pages, talk, "user", "wipe /tmp")
    await expect(page.get_by_role("form", name="May the tool asking/wipe run")).to_be_visible()
    before = len(talk.llm.requests)
    async with page.expect_request(lambda one: "requestState" in (one.post_data or "")) as ending:
        await page.get_by_role("button", name="Stop").click()
    params = json.loads((await ending.value).post_data or "")["params"]
    assert params["_meta"]["pallas/end"] is True
    assert "inputResponses" not in params
    await expect(page.get_by_text("Stopped.")).to_be_visible()
    await until_idle(talk.served)
    assert len(talk.llm.requests) == before


@pytest.mark.parametrize("leaves", ["reload", "close"])
async def test_a_page_that_goes_while_a_question_is_open_ends_the_call(
    leaves: str, talk: Talking, pages: Pages
) -> None:
    page = await chat(pages, talk, "user", "wipe /tmp")
    await expect(page.get_by_role("form", name="May the tool asking/wipe run")).to_be_visible()
    before = len(talk.llm.requests)
    await (page.reload() if leaves == "reload" else page.close())
    await until_idle(talk.served)
    assert len(talk.llm.requests) == before
    assert len(talk.served.gateway.sessions.waiting_calls) == 0


async def test_a_question_that_has_expired_ends_the_call_with_the_reason(talk: Talking, pages: Pages) -> None:
    page = await chat(pages, talk, "user", "name")
    form = page.get_by_role("form", name="What is your name?")
    await form.get_by_label("name").fill("Ada")

    async def with_an_old_state(route: Route) -> None:
        request = json.loads(route.request.post_data or "")
        request["params"]["requestState"] = "v1.expired"
        await route.continue_(post_data=request)

    await page.route("**/agents/user/mcp", with_an_old_state)
    pages.expected.append("status of 400")
    await form.get_by_role("button", name="Submit").click()
    await expect(page.get_by_role("alert")).to_contain_text("it has expired, or the gateway was started again")
    (waiting,) = talk.served.gateway.sessions.waiting_calls.works()
    waiting.cancel()
    await until_idle(talk.served)


# --- conversations ---------------------------------------------------------------------------------------------------


async def test_a_call_of_another_tab_is_shown_as_such_and_goes_on_here_when_it_has_ended(
    talk: Talking, pages: Pages
) -> None:
    entered = len(talk.gate.entered)
    page = await chat(pages, talk, "user", "hang")
    await talk.gate.wait_for_entered(entered + 1)
    other = await pages.another(page.context, talk.base_url, "#/agents/user")
    await expect(log(other)).to_contain_text("This call runs in another tab.")
    await other.get_by_role("textbox", name="Message").fill("more")
    await expect(other.get_by_role("button", name="Send")).to_be_disabled()
    await page.get_by_role("button", name="Stop").click()
    await expect(log(other)).to_contain_text("Stopped.")
    await other.get_by_role("button", name="Send").click()
    await answered(other, "user heard more")


async def test_a_call_of_another_tab_that_was_lost_is_shown_as_interrupted(talk: Talking, pages: Pages) -> None:
    entered = len(talk.gate.entered)
    page = await chat(pages, talk, "user", "hang")
    await talk.gate.wait_for_entered(entered + 1)
    await page.evaluate(NOTHING_IS_STORED)  # as of a tab that crashes
    other = await pages.another(page.context, talk.base_url, "#/agents/user")
    await expect(log(other)).to_contain_text("This call runs in another tab.")
    await page.close()
    await expect(log(other)).to_contain_text("Interrupted")
    await expect(other.get_by_role("button", name="Retry")).to_be_enabled()
    await until_idle(talk.served)


async def test_what_another_tab_has_added_to_a_conversation_is_shown_before_anything_is_sent_or_changed(
    talk: Talking, pages: Pages
) -> None:
    page = await chat(pages, talk, "user", "one")
    await answered(page, "user heard one as number 1")
    other = await pages.another(page.context, talk.base_url, "#/agents/user")
    await answered(other, "user heard one as number 1")
    await send(other, "two")
    await answered(other, "user heard two as number 2")
    await send(page, "three")
    await expect(page.get_by_role("alert")).to_contain_text("Another tab has continued this conversation.")
    await answered(page, "user heard two as number 2")
    await expect(page.get_by_role("textbox", name="Message")).to_have_value("three")
    await page.get_by_role("button", name="Send").click()
    await answered(page, "user heard three as number 3")
    await other.get_by_role("button", name="Retry").click()
    await expect(other.get_by_role("alert")).to_contain_text("Another tab has continued this conversation.")
    await other.reload()
    for text in ("one", "two", "three"):
        await expect(log(other)).to_contain_text(f"user heard {text} as")


async def test_a_conversation_is_kept_and_sent_as_history(talk: Talking, pages: Pages) -> None:
    page = await chat(pages, talk, "user", "one")
    await answered(page, "user heard one as number 1")
    await page.reload()
    await answered(page, "user heard one as number 1")
    other = await pages.another(page.context, talk.base_url, "#/agents/user")
    await answered(other, "user heard one as number 1")
    await send(page, "two")
    await answered(page, "user heard two as number 2")
    await other.evaluate("window.dispatchEvent(new Event('focus'))")
    await answered(other, "user heard two as number 2")
    await page.get_by_role("button", name="Edit").first.click()
    await expect(page.get_by_role("textbox", name="Message")).to_have_value("one")
    await send(page, "uno")
    await answered(page, "user heard uno as number 1")
    await expect(log(page)).not_to_contain_text("heard two")
    await page.get_by_role("button", name="Retry").click()
    await expect(log(page)).to_contain_text("Answer 2 of 2")
    await answered(page, "user heard uno as number 1")


async def test_a_reload_during_a_call_keeps_what_was_seen(talk: Talking, pages: Pages) -> None:
    page = await chat(pages, talk, "user", "stream on")
    await expect(page.get_by_role("heading", name="One")).to_be_visible()
    await page.reload()
    await expect(log(page)).to_contain_text("Interrupted")
    await expect(page.get_by_role("heading", name="One")).to_be_visible()
    await until_idle(talk.served)
    await expect(page.get_by_role("button", name="Retry")).to_be_enabled()


async def test_a_conversation_opened_before_the_address_has_followed_a_deletion_stays_open(
    talk: Talking, pages: Pages
) -> None:
    page = await chat(pages, talk, "user", "one")
    await answered(page, "heard one")
    await begin(page)
    await send(page, "two")
    await answered(page, "heard two")
    await page.evaluate("""() => {
      const replace = history.replaceState;
      history.replaceState = (...how) => {
        history.replaceState = replace;
        replace.apply(history, how);
        document.querySelector('.conversation').click();
      };
    }""")
    await page.get_by_text("More", exact=True).first.click()
    await page.get_by_role("button", name="Delete").click()
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await expect(log(page)).to_contain_text("heard one")


async def test_conversations_are_renamed_exported_imported_and_deleted(talk: Talking, pages: Pages) -> None:
    page = await chat(pages, talk, "user", "one")
    await answered(page, "heard one")
    before = await log(page).bounding_box()
    await page.get_by_text("More", exact=True).click()
    assert await log(page).bounding_box() == before
    await page.get_by_role("heading", name="User").first.click()
    await expect(page.get_by_role("button", name="Rename")).to_be_hidden()
    await page.get_by_text("More", exact=True).click()
    await page.get_by_role("button", name="Rename").click()
    await page.get_by_label("Name", exact=True).fill("First <b>")
    await page.get_by_role("dialog").get_by_role("button", name="Rename").click()
    await expect(page.get_by_role("button", name="First <b>")).to_be_visible()
    await expect(page.get_by_role("button", name="Export JSON")).to_be_hidden()
    await expect(page.get_by_text("More", exact=True)).to_be_focused()
    await page.get_by_text("More", exact=True).click()
    async with page.expect_download() as downloading:
        await page.get_by_role("button", name="Export JSON").click()
    file = await (await downloading.value).path()
    await page.get_by_text("More", exact=True).click()
    await page.get_by_role("button", name="Delete").click()
    dialog = page.get_by_role("dialog")
    text, button = await dialog.locator("p").bounding_box(), await dialog.locator(".actions").bounding_box()
    assert text
    assert button
    assert button["y"] - text["y"] - text["height"] >= 12
    await dialog.get_by_role("button", name="Delete").click()
    await expect(log(page)).not_to_contain_text("heard one")
    await page.get_by_label("Import").set_input_files(file)
    await answered(page, "heard one")


# --- blocking --------------------------------------------------------------------------------------------------------


@pytest.mark.needs("console-tools")
async def test_an_agent_in_error_takes_no_message_until_it_is_back(talk: Talking, pages: Pages) -> None:
    page = await chat(pages, talk, "broken")
    button = page.get_by_role("button", name="Send")
    await page.get_by_role("textbox", name="Message").fill("hello")
    await expect(page.get_by_role("status").filter(has_text="the key is missing")).to_be_visible()
    await expect(button).to_be_disabled()
    assert await findings(page) == []
    talk.served.project.write_module("broken", module_source("broken", Agent()))
    await talk.served.reload()
    await expect(button).to_be_enabled()
    await button.click()
    await answered(page, "broken heard hello")


async def test_a_degraded_agent_takes_messages_with_a_warning(talk: Talking, pages: Pages) -> None:
    page = await chat(pages, talk, "weak", "hello")
    await answered(page, "weak heard hello")
    await expect(page.get_by_role("status").filter(has_text="Unreachable: gone")).to_be_visible()


# --- what is hostile -------------------------------------------------------------------------------------------------


@pytest.mark.journey
async def test_a_hostile_transcript_has_no_effect_outside_its_element(talk: Talking, pages: Pages) -> None:
    page = await chat(pages, talk, "user", "hostile")
    await answered(page, "<script>window.pwned = 1</script>")
    await send(page, "wipe all")
    await page.get_by_role("button", name="Allow once").click()
    await expect(tool(log(page), "asking/wipe")).to_contain_text("completed")
    await answered(page, "user told wipe all")
    assert await page.evaluate("window.pwned") is None
    hrefs = await log(page).get_by_role("link").evaluate_all("links => links.map((link) => [link.href, link.rel])")
    assert {href for href, _ in hrefs} == {"https://bank.example@evil.example/x", "https://tracker.example/pixel.png"}
    assert all("noopener" in rel for _, rel in hrefs)
    await expect(log(page)).to_contain_text("(evil.example)")
    await expect(log(page)).to_contain_text("⟨U+202E⟩gnp.exe")
    assert (
        await page.evaluate("document.querySelectorAll('[role=log] img, [role=log] script, [role=log] style').length")
        == 0
    )


async def test_events_that_are_unknown_or_malformed_are_shown_raw(talk: Talking, pages: Pages) -> None:
    page = await pages.open(talk.base_url, "#/agents/user")

    async def answer(route: Route) -> None:
        if "send_message" not in (route.request.post_data or ""):
            await route.continue_()
            return
        id_ = json.loads(route.request.post_data or "")["id"]
        payloads: list[Any] = [
            None,
            7,
            {"kind": "novel", "text": "<b>x</b>"},
            {"kind": "assistant_chunk", "text": 1},
            {"kind": "assistant_delta", "agent": "user", "iteration": 1, "text": "live"},
        ]
        messages = [
            {"method": "notifications/message", "params": {"logger": "pallas.assistant_stream", "data": one}}
            for one in payloads
        ]
        result = {"content": [{"type": "text", "text": "done"}, {"type": "novel"}, None], "_meta": {"pallas/call": "x"}}
        ending = [] if '"message":"cut"' in (route.request.post_data or "") else [{"id": id_, "result": result}]
        events = ["not json", *map(json.dumps, [*messages, 7, *ending])]
        await route.fulfill(content_type="text/event-stream", body="".join(f"data: {one}\n\n" for one in events))

    await page.route("**/agents/user/mcp", answer)
    await send(page, "go")
    await answered(page, "done")
    await expect(log(page).get_by_text("Event that the console does not know")).to_have_count(4)
    await send(page, "cut")
    await expect(page.get_by_role("alert")).to_contain_text("The connection ended")
    await expect(log(page).get_by_text("live", exact=True)).to_have_count(2)


async def test_five_megabytes_of_text_are_shown_in_part(talk: Talking, pages: Pages) -> None:
    page = await chat(pages, talk, "user", "long 1000000")
    await expect(page.get_by_role("button", name=re.compile("Show .* more of 5.0 MB")).first).to_be_visible()
    await answered(page, "word")
    assert await page.evaluate("document.querySelector('[role=log]').textContent.length") < 100_000


# --- the page --------------------------------------------------------------------------------------------------------


async def test_images_are_refused_for_a_model_without_vision(talk: Talking, pages: Pages) -> None:
    picture: FilePayload = {"name": "dot.png", "mimeType": "image/png", "buffer": PNG}
    archive: FilePayload = {"name": "a.zip", "mimeType": "application/zip", "buffer": b"PK\3\4 \xff\xfe"}
    page = await chat(pages, talk, "user")
    await page.get_by_label("Add files").set_input_files([picture])
    refusal = "“dot.png” is an image. The model of this agent accepts no images."
    await expect(page.get_by_role("alert")).to_have_text(refusal)
    await expect(page.get_by_role("img")).to_have_count(0)
    page = await chat(pages, talk, "leaf")
    await page.get_by_label("Add files").set_input_files([picture, archive])
    await expect(page.get_by_role("img", name="Image 1")).to_be_visible()
    await expect(page.get_by_role("alert")).to_contain_text("“a.zip” cannot be sent: it is binary.")
    for name, content in (("text.png", b"no image"), ("cut.png", PNG[:20])):
        wrong: FilePayload = {**picture, "name": name, "buffer": content}
        await page.get_by_label("Add files").set_input_files([wrong])
        await expect(page.get_by_role("alert")).to_have_text(f"“{name}” is no PNG, JPEG, GIF or WebP image.")
    await expect(page.get_by_role("img")).to_have_count(1)
    for event, data in (("drop", "dataTransfer"), ("paste", "clipboardData")):
        await page.get_by_role("textbox", name="Message").evaluate(TRANSFER, [event, data, list(PNG)])
    await expect(page.get_by_role("img")).to_have_count(3)


@pytest.mark.needs("console-tools")
async def test_parameters_are_checked_and_sent(talk: Talking, pages: Pages) -> None:
    page = await chat(pages, talk, "leaf")
    await page.get_by_role("button", name="Files and parameters").click()
    await page.get_by_text("Parameters", exact=True).click()
    field = page.get_by_label("temperature")
    await field.fill("3")
    await send(page, "warm")
    await expect(page.get_by_text("at most 2")).to_be_visible()
    assert await findings(page) == []
    await field.fill("0.5")
    await send(page, "warm")
    await answered(page, "leaf heard warm")
    assert talk.llm.requests[-1].body["temperature"] == 0.5


@pytest.mark.needs("console-tools")
async def test_a_call_is_inspected(talk: Talking, pages: Pages) -> None:
    page = await chat(pages, talk, "left", "go")
    await answered(page, "left told go")
    inspect = page.get_by_role("button", name="Inspect")
    await inspect.click()
    dialog = page.get_by_role("dialog")
    await expect(dialog.get_by_role("row").filter(has_text="leaf/send_message")).to_be_visible()
    footer = re.search(r"([\d,]+) tokens in, ([\d,]+) out", await log(page).inner_text())
    assert footer
    for name, count in zip(("Tokens in", "Tokens out"), footer.groups(), strict=True):
        await expect(dialog.locator("div").filter(has_text=re.compile(f"^{name}{count}$"))).to_have_count(1)
    assert await findings(page) == []
    async with page.expect_download() as downloading:
        await dialog.get_by_role("button", name="Download the call").click()
    document = json.loads((await (await downloading.value).path()).read_text())
    assert document["request"]["arguments"]["message"] == "go"
    assert document["result"]["content"][0]["text"].startswith("left told go")
    await page.keyboard.press("Escape")
    await expect(dialog).to_have_count(0)
    await expect(inspect).to_be_focused()


@pytest.mark.needs("console-tools")
async def test_the_chat_is_accessible_in_the_dark_and_fits_a_narrow_screen(talk: Talking, pages: Pages) -> None:
    page = await chat(pages, talk, "root", "go", scheme="dark", narrow=True)
    await answered(page, "root told go")
    assert await findings(page) == []
    assert await page.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.needs("console-tools")
async def test_only_the_conversation_scrolls_and_a_long_title_is_cut(talk: Talking, pages: Pages) -> None:
    title = "A conversation about " + "x" * 100
    for narrow in (False, True):
        page = await chat(pages, talk, "user", title, narrow=narrow)
        await answered(page, "as number 1")
        for number in (2, 3):
            await send(page, "long 300")
            await expect(page.get_by_role("button", name="Inspect")).to_have_count(number)
        conversations = page.get_by_role("group").filter(has_text="New conversation")
        entry = page.get_by_role("button", name=title, exact=True)
        if narrow:
            await expect(entry).to_be_hidden()
            await page.locator("summary", has_text="Conversations (1)").click()
        await expect(entry).to_have_attribute("title", title)
        assert await page.evaluate(OVERFLOWING) == []
        assert await findings(page) == []
        await expect(conversations).to_be_visible()
        await page.set_viewport_size({"width": 360 if not narrow else 1280, "height": 740})
        await expect(entry).to_be_visible(visible=narrow)
