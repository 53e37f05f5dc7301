"""Agents of the database in the console: made, changed, compared, restored and deleted by people."""

import re
from collections.abc import AsyncGenerator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Page, ViewportSize, expect

from tests.console.managing import (
    AUTH,
    GRANTS,
    MODEL,
    UNCONFIGURED,
    Managing,
    field,
    managing,
    runs,
    save,
    signed_in,
    tab_to,
)
from tests.console.pages import Pages, findings
from tests.console.talking import HOSTILE, answered, send
from tests.support.calling import ask
from tests.support.stored_threads import agents_feature_of

pytestmark = pytest.mark.asyncio(loop_scope="session")

PHONE: ViewportSize = {"width": 390, "height": 844}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def managed(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Managing]:
    """A gateway without `auth`: everybody may do everything."""
    async with managing(tmp_path_factory.mktemp("agents")) as one:
        yield one


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def guarded(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Managing]:
    """A gateway whose callers have the grants of `GRANTS`."""
    async with managing(tmp_path_factory.mktemp("guarded"), auth=AUTH) as one:
        yield one


async def stored(managed: Managing, name: str, who: str | None = None) -> dict[str, Any]:
    version = (await managed.api("GET", f"agents/{name}", who=who)).json()["version"]
    return dict((await managed.api("GET", f"agents/{name}/versions/{version}", who=who)).json())


@pytest.mark.journey
async def test_an_agent_is_made_and_called_by_the_keyboard_alone(managed: Managing, pages: Pages) -> None:
    page = await pages.open(managed.base_url)
    await tab_to(page, page.get_by_role("link", name="New agent"))
    await page.keyboard.press("Enter")
    keys = page.keyboard
    await tab_to(page, field(page, "Name"))
    await keys.type("desk")
    await tab_to(page, field(page, "Title"))
    await keys.type("The desk")
    await tab_to(page, field(page, "Instruction"))
    await keys.type("You are desk.")
    await tab_to(page, page.get_by_role("button", name="Preview"))
    await keys.press("Enter")
    await expect(page.get_by_role("region", name="Preview of the instruction")).to_have_text("You are desk.")
    await tab_to(page, page.get_by_role("combobox", name="Model"))
    await keys.type("generic.test")
    await tab_to(page, page.get_by_role("checkbox", name="notes", exact=True))
    await keys.press("Space")
    notes = page.get_by_role("group", name="notes", exact=True)
    await tab_to(page, notes.get_by_role("checkbox", name="All released tools"))
    await keys.press("Space")
    await tab_to(page, notes.get_by_role("checkbox", name="add", exact=True))
    await keys.press("Space")
    await tab_to(page, page.get_by_role("button", name="Add an example"))
    await keys.press("Enter")
    await expect(field(page, "Example 1")).to_be_focused()
    await keys.type("add")
    await tab_to(page, page.get_by_role("button", name="Save", exact=True))
    await keys.press("Enter")
    await runs(page, 1)
    assert await stored(managed, "desk") == {
        **{"title": "The desk", "instruction": "You are desk.", "model": MODEL, "servers": ["notes"]},
        **{"tools": ["notes__add"], "examples": ["add"], "version": 1, "editor": "anonymous"},
        "updatedAt": (await stored(managed, "desk"))["updatedAt"],
    }
    await tab_to(page, page.get_by_role("link", name="Chat", exact=True))
    await keys.press("Enter")
    await tab_to(page, page.get_by_role("textbox", name="Message"))
    await keys.type("add")
    await keys.press("Enter")
    await answered(page, "desk told")


@pytest.mark.needs("console-tools")
async def test_problems_stand_beside_their_fields_and_the_first_has_the_focus(managed: Managing, pages: Pages) -> None:
    page = await pages.open(managed.base_url, "#/new-agent")
    await save(page)
    await expect(field(page, "Name")).to_be_focused()
    await expect(page.get_by_text("Enter a name.")).to_be_visible()
    await field(page, "Name").fill("checked")
    await field(page, "Instruction").fill("Read {{file:/etc/passwd}}.")
    await page.get_by_text("Advanced", exact=True).click()
    await field(page, "LLM turns in a call").fill("99")
    await page.get_by_text("Advanced", exact=True).click()
    pages.expected += ["status of 422", "status of 409"]
    await page.get_by_role("button", name="Check", exact=True).click()
    await expect(field(page, "LLM turns in a call")).to_have_attribute("aria-invalid", "true")
    await expect(field(page, "LLM turns in a call")).to_have_accessible_description(re.compile("must be at most 20"))
    await expect(field(page, "Instruction")).to_be_focused()
    assert await findings(page) == []
    await field(page, "Instruction").fill("You are echo.")
    await field(page, "LLM turns in a call").fill("9")
    await field(page, "Name").fill("Echo")
    await page.get_by_role("button", name="Check", exact=True).click()
    await expect(field(page, "Name")).to_be_focused()
    await expect(field(page, "Name")).to_have_accessible_description(re.compile("There is an agent 'echo' already"))
    await field(page, "Name").fill("checked")
    await page.get_by_role("combobox", name="Model").select_option(MODEL)
    await page.get_by_role("button", name="Check", exact=True).click()
    await expect(page.get_by_text("found nothing wrong")).to_be_visible()
    assert (await managed.api("GET", "agents/checked")).status_code == 404


@pytest.mark.journey
@pytest.mark.needs("console-tools")
async def test_a_change_is_a_version_that_runs_and_earlier_ones_are_compared_and_restored(
    managed: Managing, pages: Pages
) -> None:
    instruction = "You are poet.\nBe brief."
    await managed.make("poet", description="Writes.", instruction=instruction, params={"temperature": 0.5})
    page = await pages.open(managed.base_url, "#/agents/poet/details")
    await runs(page, 1)
    await page.get_by_role("link", name="Edit").click()
    await expect(field(page, "Description")).to_have_value("Writes.")
    await field(page, "Description").fill("Writes poems.")
    await field(page, "Instruction").fill("You are poet.\nBe long.")
    await page.get_by_text("Advanced", exact=True).click()
    await page.get_by_text("Parameters of its calls (1 set)").click()
    await field(page, "temperature").fill("1")
    await page.get_by_label("Reason of the change").fill("Too short.")
    await save(page)
    await expect(page.get_by_text("Saved. Version 2 runs.")).to_be_visible()
    await expect(page.get_by_role("region", name="Agent").get_by_text("Writes poems.")).to_be_visible()
    await page.get_by_role("link", name="Versions").click()
    rows = page.get_by_role("table", name="All versions").locator("tbody").get_by_role("row")
    await expect(rows).to_have_count(2)
    await expect(rows.first).to_contain_text("anonymous")
    await expect(rows.first.get_by_role("cell", name="Too short.")).to_be_visible()
    changed = page.get_by_role("region", name="From version 1 to version 2")
    await expect(changed.get_by_role("row", name="Description Writes. Writes poems.")).to_be_visible()
    await expect(changed.get_by_role("row", name="Parameters temperature: 0.5 temperature: 1")).to_be_visible()
    lines = changed.get_by_role("group", name="Changed lines of the instruction").locator("p")
    await expect(lines).to_have_count(3)
    assert [(await line.inner_text()).split() for line in await lines.all()] == [
        ["You", "are", "poet."], ["\u2212", "removed:", "Be", "brief."], ["+", "added:", "Be", "long."]
    ]  # fmt: skip
    assert await findings(page) == []
    await page.get_by_role("button", name="Restore version 1").click()
    await page.get_by_role("dialog").get_by_label("Why?").fill("Too long.")
    await page.get_by_role("dialog").get_by_role("button", name="Restore").click()
    await expect(page.get_by_text("Version 1 is restored.")).to_be_visible()
    await expect(rows).to_have_count(3)
    await expect(rows.first).to_contain_text("Too long.")
    assert (await stored(managed, "poet"))["instruction"] == instruction
    await page.get_by_role("combobox", name="Compare version").select_option("1")
    await expect(page.get_by_role("region", name="From version 1 to version 3")).to_contain_text("Nothing differs.")


async def test_the_owner_reads_how_answers_are_rated_and_the_notes_that_are_for_it(
    managed: Managing, pages: Pages
) -> None:
    await managed.make("liked")
    for note, is_shared in (("Private.", False), ("Lovely.", True)):
        chat = (await managed.api("POST", "agents/liked/chat", {"message": f"I think: {note}"})).json()
        given = {"rating": "good", "note": note, "forOwner": is_shared}
        await managed.api("PUT", f"threads/{chat['threadId']}/turns/1/feedback", given)
    page = await pages.open(managed.base_url, "#/agents/liked/details")
    ratings = page.get_by_role("region", name="Ratings")
    await expect(ratings).to_contain_text("2 good, 0 bad answers, as people rated them.")
    await ratings.get_by_text("Lovely.").first.click()
    await expect(ratings.get_by_role("group", name="Message")).to_have_text("I think: Lovely.")
    await expect(ratings).not_to_contain_text("Private.")
    assert await findings(page) == []


@pytest.mark.needs("console-tools")
async def test_a_version_that_does_not_start_is_shown_with_the_reason_until_one_runs(
    managed: Managing, pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    definitions = agents_feature_of(managed.served.gateway).definitions
    await managed.make("picky")
    page = await pages.open(managed.base_url, "#/agents/picky/edit")
    await page.get_by_role("combobox", name="Model").select_option(UNCONFIGURED)
    monkeypatch.setattr(definitions, "check", None)  # so that a version may fail at its start
    await save(page)
    state = page.get_by_role("status").filter(has_text="Version 2")
    await expect(state).to_contain_text("Version 2 is saved and does not start. Version 1 still runs.")
    await expect(state).to_contain_text("azure")
    assert await findings(page) == []
    await managed.change("picky", model=MODEL)
    await runs(page, 3)


@pytest.mark.journey
async def test_the_form_answers_by_what_it_says_before_it_is_saved(managed: Managing, pages: Pages) -> None:
    await managed.make("draft", servers=["notes"], examples=["add"])
    page = await pages.open(managed.base_url, "#/agents/draft/edit")
    trial = page.get_by_role("region", name="Try it")
    await field(page, "Instruction").fill("You are better.")
    await send(page, "Hi")
    await answered(page, "better heard Hi")
    await field(page, "Instruction").fill("You are best.")
    await trial.get_by_role("button", name="Clear").click()
    await trial.get_by_role("list", name="Examples").get_by_role("button", name="add").click()
    await page.get_by_role("textbox", name="Message").press("Enter")
    await answered(page, "best told")
    await expect(trial.get_by_role("group", name="notes/add", exact=True)).to_contain_text("completed")
    assert (await stored(managed, "draft"))["version"] == 1
    pages.expected.append("status of 422")
    await page.get_by_text("Advanced", exact=True).click()
    await field(page, "Calls at once").fill("2")
    await field(page, "LLM turns in a call").fill("99")
    await page.get_by_text("Advanced", exact=True).click()
    await send(page, "Hi again")
    await expect(field(page, "LLM turns in a call")).to_have_attribute("aria-invalid", "true")
    await expect(field(page, "LLM turns in a call")).to_be_focused()
    await expect(trial.get_by_role("alert")).to_contain_text("must be at most 20")


async def test_a_question_of_an_agent_that_is_tried_is_answered_and_a_call_is_stopped(
    managed: Managing, pages: Pages
) -> None:
    page = await pages.open(managed.base_url, "#/new-agent")
    await field(page, "Instruction").fill("You are new.")
    await page.get_by_role("combobox", name="Model").select_option(MODEL)
    await page.get_by_role("checkbox", name="notes", exact=True).check()
    await page.get_by_text("Advanced", exact=True).click()
    await field(page, "Tools to approve").fill("notes/add")
    await send(page, "add")
    trial = page.get_by_role("region", name="Try it")
    await trial.get_by_role("button", name="Allow once").click()
    await answered(page, "new told")
    await trial.get_by_role("button", name="Retry").click()
    await expect(trial.get_by_role("button", name="Allow once")).to_be_visible()
    await trial.get_by_role("button", name="Stop", exact=True).click()
    await expect(trial.get_by_text("Stopped.")).to_be_visible()
    await expect(page.get_by_role("link", name="unsaved")).to_have_count(0)


@pytest.mark.needs("console-tools")
async def test_examples_are_offered_in_an_empty_conversation_and_not_sent(managed: Managing, pages: Pages) -> None:
    await managed.make("helper", examples=["What is\nnew?", "<b>add</b>"])
    page = await pages.open(managed.base_url, "#/agents/helper")
    examples = page.get_by_role("list", name="Examples").get_by_role("button")
    await expect(examples).to_have_text(["What is new?", "<b>add</b>"])
    assert await findings(page) == []
    await examples.first.click()
    message = page.get_by_role("textbox", name="Message")
    await expect(message).to_be_focused()
    await expect(message).to_have_value("What is\nnew?")
    await message.press("Enter")
    await answered(page, "helper heard What is")
    await expect(examples).to_have_count(0)


async def test_a_form_that_changes_nothing_makes_no_version(managed: Managing, pages: Pages) -> None:
    whole: dict[str, Any] = {
        **{"title": "T", "icon": "https://example.com/i.svg", "servers": ["notes"], "tools": ["notes__add"]},
        **{"agents": ["echo"], "params": {"max_tokens": 9, "stop": ["a"]}, "examples": ["Hi"], "maxIterations": 3},
        **{"approve": ["destructive", "notes/add"], "toolLimits": {"notes/*": 2}, "humanInput": True},
        **{"callTimeoutSeconds": 1.5, "loopRepeatThreshold": 0, "maxInFlight": 2, "maxTokensPerCall": 1000},
    }
    await managed.make("whole", **whole)
    before = await stored(managed, "whole")
    page = await pages.open(managed.base_url, "#/agents/whole/edit")
    await expect(field(page, "Title")).to_have_value("T")
    await save(page)
    await runs(page, 1)
    assert await stored(managed, "whole") == before


@pytest.mark.needs("console-tools")
async def test_of_two_pages_the_second_is_shown_what_the_first_has_saved_and_loses_nothing(
    guarded: Managing, pages: Pages
) -> None:
    await guarded.make("shared", who="ada", description="First.", examples=["one"])
    page = await signed_in(pages, guarded, "ada", "#/agents/shared/edit")
    await field(page, "Description").fill("Ada's.")
    await field(page, "Title").fill("Ada's title")
    await guarded.change("shared", who="eve", description="Eve's.", instruction="You are shared.\nBe kind.")
    pages.expected.append("status of 412")
    await save(page)
    conflict = page.get_by_role("region", name="Saved meanwhile")
    await expect(conflict).to_be_focused()
    await expect(conflict).to_contain_text("Version 2 was saved by eve while you were editing.")
    await expect(conflict.get_by_role("row", name="Description First. Eve's.")).to_be_visible()
    await expect(conflict).to_contain_text("Be kind.")
    await expect(field(page, "Description")).to_have_value("Ada's.")
    await expect(field(page, "Title")).to_have_value("Ada's title")
    await expect(field(page, "Instruction")).to_have_value("You are shared.\nBe kind.")
    assert await findings(page) == []
    await conflict.get_by_role("button", name="Take Description of version 2").click()
    await expect(field(page, "Description")).to_have_value("Eve's.")
    await save(page)
    await runs(page, 3)
    found = await stored(guarded, "shared", "ada")
    assert (found["title"], found["description"], found["instruction"]) == (
        *("Ada's title", "Eve's."),
        "You are shared.\nBe kind.",
    )


async def test_what_was_typed_is_still_there_after_a_look_elsewhere(managed: Managing, pages: Pages) -> None:
    page = await pages.open(managed.base_url, "#/new-agent")
    await field(page, "Title").fill("Half done")
    await page.get_by_role("link", name="Usage").click()
    await expect(page.get_by_role("heading", name="Usage", exact=True)).to_be_visible()
    await page.go_back()
    await expect(field(page, "Title")).to_have_value("Half done")
    await expect(page.get_by_text("It is not saved.")).to_be_visible()
    await page.get_by_role("button", name="Cancel").click()
    await page.get_by_role("link", name="New agent").click()
    await expect(field(page, "Title")).to_have_value("")


async def test_an_agent_is_copied(managed: Managing, pages: Pages) -> None:
    await managed.make("source", description="Original.", servers=["notes"])
    page = await pages.open(managed.base_url, "#/agents/source/details")
    await page.get_by_role("link", name="Make a copy").click()
    await expect(field(page, "Description")).to_have_value("Original.")
    await field(page, "Name").fill("second")
    await save(page)
    await runs(page, 1)
    copied, source = [await stored(managed, name) for name in ("second", "source")]
    assert {**copied, "updatedAt": None} == {**source, "updatedAt": None}


@pytest.mark.needs("console-tools")
async def test_an_agent_that_others_use_is_not_deleted_before_them(managed: Managing, pages: Pages) -> None:
    await managed.make("inner")
    await managed.make("outer", agents=["inner"])
    page = await pages.open(managed.base_url, "#/agents/inner/details")
    await page.get_by_role("button", name="Delete").click()
    dialog = page.get_by_role("dialog", name="Delete Inner?")
    await expect(dialog.get_by_role("radio", name="Keep them, for their owners to read")).to_be_checked()
    assert await findings(page) == []
    pages.expected.append("status of 409")
    await dialog.get_by_role("button", name="Delete").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("sub-agent of outer")
    assert (await managed.api("DELETE", "agents/outer")).status_code == 204
    pages.expected.append("status of 404")  # of what the details ask again while the agent goes
    await dialog.get_by_role("button", name="Delete").click()
    await expect(page.get_by_role("heading", name="Agents", exact=True)).to_be_visible()
    await expect(page.get_by_role("link", name="Inner", exact=True)).to_have_count(0)
    assert (await managed.api("GET", "agents/inner")).status_code == 404


@pytest.mark.needs("console-tools")
async def test_an_agent_is_handed_over_and_a_refusal_stands_beside_its_field(guarded: Managing, pages: Pages) -> None:
    await guarded.make("given", who="ada")
    page = await signed_in(pages, guarded, "ada", "#/agents/given/details")
    await runs(page, 1)
    await tab_to(page, page.get_by_role("button", name="Hand over"))
    await page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="Hand over Given?")
    key, confirm = dialog.get_by_label("Their id"), dialog.get_by_role("button", name="Hand over")
    await expect(dialog).to_contain_text("ada can no longer change, hand over or delete the agent")
    await confirm.click()
    await expect(key).to_be_focused()
    await expect(key).to_have_attribute("aria-invalid", "true")
    await key.fill("key:bbo")
    pages.expected.append("status of 422")
    await page.keyboard.press("Enter")
    await expect(key).to_have_accessible_description(re.compile("no key 'bbo' in gateway.auth.tokens"))
    await expect(key).to_be_focused()
    await page.set_viewport_size(PHONE)
    assert await findings(page) == []
    assert await page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    await key.fill("token:https://login.example.com")
    await confirm.click()
    await expect(key).to_have_accessible_description(re.compile("must be"))
    assert (await stored(guarded, "given", "ada"))["version"] == 1
    await key.fill("key:eve")
    await expect(dialog).to_contain_text("The owner changes from ada to eve.")
    pages.expected.append("status of 404")  # ada does not see it any more
    await confirm.click()
    await expect(page.get_by_role("heading", name="Agents", exact=True)).to_be_visible()
    given = (await guarded.api("GET", "agents/given", who="eve")).json()
    assert (given["owner"], given["version"]) == ("eve", 2)
    await guarded.remove("given", who="eve")  # others see it in the registry, and nothing of it elsewhere


async def test_the_owner_of_an_agent_sees_its_last_week_and_other_editors_do_not(
    guarded: Managing, pages: Pages
) -> None:
    await guarded.make("weekly", who="ada")
    await ask(guarded.served.url("weekly"), "hello", bearer="bob")
    page = await signed_in(pages, guarded, "ada", "#/agents/weekly/details")
    week = page.get_by_role("table", name="Last 7 days").get_by_role("row")
    await expect(week.last.get_by_role("cell").first).to_have_text("1")
    await expect(page.get_by_text("bob")).to_have_count(0)
    assert await findings(page) == []
    page = await signed_in(pages, guarded, "eve", "#/agents/weekly/details")
    await expect(page.get_by_role("heading", name="Tools, as clients see them")).to_be_visible()
    await expect(page.get_by_role("heading", name="Last 7 days")).to_have_count(0)
    await guarded.remove("weekly", who="ada")


async def test_who_hands_over_an_agent_of_another_stays_with_it(guarded: Managing, pages: Pages) -> None:
    await guarded.make("orphan", who="ada")
    page = await signed_in(pages, guarded, "ops", "#/agents/orphan/details")
    await page.get_by_role("button", name="Hand over").click()
    dialog = page.get_by_role("dialog", name="Hand over Orphan?")
    owner = dialog.get_by_label("New owner")
    await owner.select_option("all callers without a key")
    await expect(dialog).to_contain_text("The owner changes from ada to all callers without a key.")
    await owner.select_option("ops (key)")  # who has opened this page
    await dialog.get_by_role("button", name="Hand over").click()
    await expect(dialog).to_have_count(0)
    await expect(page.get_by_role("region", name="Definition").get_by_text("ops", exact=True)).to_be_visible()
    await runs(page, 2)
    await guarded.remove("orphan", who="ops")


@pytest.mark.parametrize("with_threads", [False, True])
async def test_the_conversations_of_a_deleted_agent_stay_or_go_as_was_chosen(
    with_threads: bool, managed: Managing, pages: Pages
) -> None:
    name = f"gone{with_threads:d}"
    await managed.make(name)
    thread = (await managed.api("POST", f"agents/{name}/threads", {})).json()["id"]
    page = await pages.open(managed.base_url, f"#/agents/{name}/details")
    await page.get_by_role("button", name="Delete").click()
    if with_threads:
        await page.get_by_role("radio", name="Delete those of all callers as well").check()
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await expect(page.get_by_role("heading", name="Agents", exact=True)).to_be_visible()
    answer = await managed.api("GET", f"threads/{thread}/messages")
    assert answer.status_code == (404 if with_threads else 200)


@pytest.mark.needs("console-tools")
async def test_hostile_texts_are_text_in_the_form_the_versions_and_the_details(managed: Managing, pages: Pages) -> None:
    visible = HOSTILE.translate(dict.fromkeys((0, 0x202E, 0x2066)))
    instruction = f"You are hostile.\n{HOSTILE.translate({0: None})}\n" + "x" * 90_000
    await managed.make("hostile", instruction="You are hostile.", title="<b>Bold</b>", examples=[visible])
    await managed.change("hostile", instruction=instruction, description="</dd><script>window.pwned = 1</script>")
    page = await pages.open(managed.base_url, "#/agents/hostile/versions")
    await expect(page.get_by_role("row", name="Description none")).to_contain_text("<script>")
    await expect(page.get_by_role("group", name="Changed lines of the instruction")).to_contain_text("⟨U+202E⟩gnp.exe")
    await page.get_by_role("link", name="Details").click()
    await expect(page.get_by_role("heading", name="<b>Bold</b>")).to_be_visible()
    await page.get_by_role("link", name="Edit").click()
    assert await field(page, "Instruction").input_value() == instruction
    await page.get_by_role("button", name="Preview").click()
    preview = page.get_by_role("region", name="Preview of the instruction")
    await expect(preview).to_contain_text("<script>window.pwned")
    await field(page, "Instruction").fill(HOSTILE)
    await expect(preview).to_contain_text("Image: pixel")
    await page.get_by_text("Advanced", exact=True).click()
    for name in ("Title", "Description", "Icon", "Tools to approve"):
        await field(page, name).fill(HOSTILE.replace("\n", " "))
    pages.expected.append("status of 422")
    await save(page)
    await expect(field(page, "Title")).to_be_focused()
    assert await findings(page) == []
    assert await page.evaluate("window.pwned") is None
    assert await page.locator("main script, main style, main img").count() == 0


async def test_a_caller_without_rights_sees_no_buttons(guarded: Managing, pages: Pages) -> None:
    await guarded.make("private", who="ada")
    for who, shown in {
        "bob": [],
        "eve": ["Edit"],
        "ada": ["Edit", "Make a copy", "Hand over", "Delete"],
        "ops": ["Edit", "Hand over", "Delete"],
    }.items():
        page = await signed_in(pages, guarded, who)
        await expect(page.get_by_role("link", name="Private", exact=True)).to_be_visible()
        may_create = "create:agents" in GRANTS[who]
        await expect(page.get_by_text("Checked at")).to_be_visible()
        await expect(page.get_by_role("link", name="New agent")).to_have_count(int(may_create))
        await page.get_by_role("link", name="Details of Private").click()
        await expect(page.get_by_role("heading", name="Definition")).to_be_visible()
        main = page.get_by_role("main")
        for name in ("Edit", "Make a copy", "Hand over", "Delete"):
            role = main.get_by_role("button" if name in ("Hand over", "Delete") else "link", name=name, exact=True)
            await expect(role).to_have_count(int(name in shown))
        await page.close()
    pages.expected.append("status of 403")
    page = await signed_in(pages, guarded, "bob", "#/new-agent")
    await expect(page.get_by_role("alert")).to_contain_text("create:agents")


async def test_agents_of_files_show_that_they_are_changed_there(managed: Managing, pages: Pages) -> None:
    page = await pages.open(managed.base_url, "#/agents/echo/details")
    await expect(page.get_by_text("It is defined in agents.yaml, and is changed there.")).to_be_visible()
    for role in ("Edit", "Versions", "Make a copy", "Hand over", "Delete"):
        await expect(page.get_by_role("main").get_by_text(role, exact=True)).to_have_count(0)


@pytest.mark.needs("console-tools")
@pytest.mark.parametrize("view", ["new-agent", "agents/small/edit", "agents/small/versions", "agents/small/details"])
async def test_the_views_are_accessible_and_fit_a_phone(view: str, managed: Managing, pages: Pages) -> None:
    if (await managed.api("GET", "agents/small")).status_code == 404:
        await managed.make("small", servers=["notes"], tools=["notes__add"], toolLimits={"notes/*": 3})
        await managed.change("small", description="A long-word-" + "x" * 150)
    page = await pages.open(managed.base_url, f"#/{view}")
    await page.set_viewport_size(PHONE)
    await expect(page.get_by_role("heading", level=2).first).to_be_visible()
    assert await findings(page) == []
    assert await page.evaluate("document.documentElement.scrollWidth") <= 390


async def test_a_gateway_without_a_database_shows_nothing_of_it(tmp_path: Any, pages: Pages) -> None:
    async with managing(tmp_path, database=None, agents_may_use=None) as managed:
        page = await pages.open(managed.base_url)
        await expect(page.get_by_text("Checked at")).to_be_visible()
        await expect(page.get_by_role("link", name="New agent")).to_have_count(0)
        await page.get_by_role("link", name="Details of Echo").click()
        await expect(page.get_by_role("heading", name="Instruction")).to_be_visible()
        await expect(page.get_by_role("heading", name="Definition")).to_have_count(0)
        await page.close()


@pytest.mark.needs("console-tools")
async def test_a_stored_turn_shows_its_tools_after_a_reload_as_before(managed: Managing, pages: Pages) -> None:
    await managed.make("steps", servers=["notes"])
    page = await pages.open(managed.base_url, "#/agents/steps")
    await send(page, "add")
    await answered(page, "steps told")
    await steps_are_shown(page)
    await page.reload()
    await answered(page, "steps told")
    await steps_are_shown(page)
    assert await findings(page) == []
    await page.get_by_role("button", name="Inspect").click()
    await expect(page.get_by_text("The times of its steps are not known to this page.")).to_be_visible()
    await page.keyboard.press("Escape")


async def steps_are_shown(page: Page) -> None:
    tool = page.get_by_role("log", name="Conversation").get_by_role("group", name="notes/add", exact=True)
    await expect(tool).to_have_count(1)
    await expect(tool).to_contain_text("completed")
    await tool.locator("summary", has_text="Arguments").click()
    await expect(tool.get_by_role("group", name="Arguments")).to_contain_text('"b": 2')
    await tool.locator("summary", has_text="Result").click()
    await expect(tool.get_by_role("group", name="Result", exact=True)).to_contain_text("3")
