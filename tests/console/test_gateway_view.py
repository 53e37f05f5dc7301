"""The views of the gateway and of one agent."""

import re
from collections.abc import AsyncGenerator
from contextlib import nullcontext
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from opentelemetry.sdk.trace import TracerProvider
from playwright.async_api import expect

from pallas_gateway.features.pages.documentation import INDEX, contents
from pallas_gateway.identity.static_keys import hash_of
from pallas_gateway.telemetry import traces
from tests.console.pages import Pages, enter, findings
from tests.support.downstreams import stateless_downstream
from tests.support.gateway import Agent, Running, running, write_project

pytestmark = pytest.mark.asyncio(loop_scope="session")

AGENTS = {
    "lead": Agent(servers=["echo"], settings={"depends_on": ["echo"], "title": "Lead"}),
    "echo": Agent(settings={"description": "Repeats <i>all</i>."}),
    "broken": Agent(source="raise ValueError('no key')\n"),
}


TRACE_URL = "https://traces.example/trace/{trace_id}?from=console"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Running]:
    project = write_project(tmp_path_factory.mktemp("views"), AGENTS, gateway={"trace_url": TRACE_URL})
    async with running(project) as gateway:
        yield gateway


@pytest.mark.journey
async def test_the_gateway_shows_its_state_and_figures(served: Running, pages: Pages) -> None:
    page = await pages.open(served.base_url, "#/gateway")
    state = page.get_by_role("region", name="State")
    await expect(state.get_by_text("ready", exact=True)).to_be_visible()
    await expect(state.get_by_text("broken: failed: ")).to_contain_text("no key")
    figures = page.get_by_role("region", name="Figures")
    await expect(figures.get_by_text("Version")).to_be_visible()
    await expect(figures.get_by_text("Workers", exact=True)).to_be_visible()
    await expect(figures.get_by_text("Configuration loaded")).to_be_visible()
    assert await page.get_by_text("The last reload failed").count() == 0


async def test_the_links_lead_to_pages_of_the_gateway(served: Running, pages: Pages) -> None:
    pages.expected.append("/favicon.ico")
    page = await pages.open(served.base_url, "#/gateway")
    links = page.get_by_role("region", name="Documentation").get_by_role("link")
    await expect(links.first).to_have_text("All pages")
    titles = {path: title for listed in contents().values() for path, title in listed.items()} | {INDEX: "All pages"}
    for link in await links.all():
        path = await link.evaluate("link => new URL(link.href).pathname")
        assert await link.text_content() == titles[path]
    await links.first.click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Documentation")


@pytest.mark.needs("console-tools")
async def test_a_page_of_the_documentation_is_readable_on_a_phone(served: Running, pages: Pages) -> None:
    page = await pages.open(served.base_url, "#/gateway")
    await page.set_viewport_size({"width": 390, "height": 844})
    await page.goto(f"{served.base_url}/docs/use/console.md")
    await expect(page.get_by_role("heading", level=1)).to_have_text("The console")
    await expect(page.get_by_role("img").first).to_have_js_property("complete", True)
    assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert all(await page.evaluate("[...document.images].map((one) => one.naturalWidth > 0)"))
    assert await findings(page) == []
    await page.get_by_role("link", name="Gateway", exact=True).click()
    await expect(page).to_have_url(f"{served.base_url}/console/")


async def test_a_failed_reload_is_shown(served: Running, pages: Pages) -> None:
    before = (served.project.path / "agents.yaml").read_text()
    served.project.edit(lambda document: document.update(unknown=1))
    await served.reload()
    try:
        page = await pages.open(served.base_url, "#/gateway")
        await expect(page.get_by_text("The last reload failed")).to_be_visible()
        problems = page.get_by_role("list", name="Problems of the last reload")
        await expect(problems.get_by_role("listitem")).to_contain_text("unknown key")
    finally:
        (served.project.path / "agents.yaml").write_text(before)
        await served.reload()


async def test_the_graph_leads_from_agents_to_their_peers(served: Running, pages: Pages) -> None:
    page = await pages.open(served.base_url, "#/gateway")
    graph = page.get_by_role("region", name="Agents and servers")
    await expect(graph.get_by_text("Lead calls Echo (not used in the last hour).")).to_be_attached()
    assert await graph.get_by_role("group", name="Graph").locator("path").count() == 1
    await graph.get_by_role("link", name="Lead ok").focus()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="Lead")).to_be_visible()
    assert page.url.endswith("#/agents/lead/details")


@pytest.mark.needs("console-tools")
async def test_the_graph_shows_which_downstreams_worked_in_the_last_hour(tmp_path: Path, pages: Pages) -> None:
    async with stateless_downstream() as notes:
        servers = {"notes": {"url": notes.url}}
        agents = {name: Agent(["notes"], settings={"title": name.title()}) for name in ("good", "bad", "idle")}
        async with running(write_project(tmp_path, agents, servers=servers)) as served:
            async with httpx.AsyncClient(trust_env=False, base_url=f"{served.base_url}/api/agents") as http:
                runs = [
                    await http.post("/good/tools/notes/fail", json={"arguments": {"message": "earlier"}}),
                    await http.post("/good/tools/notes/add", json={"arguments": {"a": 1, "b": 1}}),
                    await http.post("/bad/tools/notes/fail", json={"arguments": {"message": "now"}}),
                ]
                assert [one.json()["isError"] for one in runs] == [True, False, True]
            page = await pages.open(served.base_url, "#/gateway", narrow=True)
            graph = page.get_by_role("region", name="Agents and servers")
            await expect(graph.get_by_text("Good calls notes (worked in the last hour).")).to_be_attached()
            await expect(graph.get_by_text("Bad calls notes (failed in the last hour).")).to_be_attached()
            await expect(graph.get_by_text("Idle calls notes (not used in the last hour).")).to_be_attached()
            drawn = graph.get_by_role("group", name="Graph").locator("path")
            assert [await one.get_attribute("class") for one in await drawn.all()] == ["worked", "failed", "unused"]
            await expect(graph.get_by_role("group", name="Legend")).to_contain_text("failed in the last hour")
            assert await findings(page) == []
            assert await page.evaluate("document.documentElement.scrollWidth") <= 360


async def test_the_details_are_the_tools_and_downstreams_that_a_client_sees(served: Running, pages: Pages) -> None:
    page = await pages.open(served.base_url, "#/agents/lead/details")
    await expect(page.get_by_role("row", name="echo ok")).to_be_visible()
    own = page.get_by_role("region", name="Tools, as clients see them")
    await own.get_by_text("send_message", exact=True).click()
    schema = own.get_by_role("group", name="Input schema of send_message")
    await expect(schema.get_by_text('"required"').first).to_be_visible()
    await page.goto(f"{served.base_url}/console/#/agents/echo/details")
    await expect(page.get_by_role("region", name="Agent").get_by_text("Repeats <i>all</i>.")).to_be_visible()


@pytest.mark.needs("console-tools")
@pytest.mark.parametrize("view", ["#/gateway", "#/agents/lead/details"])
async def test_the_views_are_accessible_and_fit_a_narrow_screen(served: Running, pages: Pages, view: str) -> None:
    page = await pages.open(served.base_url, view, narrow=True)
    await expect(
        page.get_by_text("send_message" if "details" in view else "Configuration loaded", exact=True).first
    ).to_be_visible()
    await expect(page.get_by_text("ok", exact=True).first).to_be_visible()
    assert await findings(page) == []
    assert await page.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.needs("console-tools")
async def test_the_details_show_the_instruction_and_the_tools_of_downstreams(served: Running, pages: Pages) -> None:
    page = await pages.open(served.base_url, "#/agents/lead/details")
    await expect(page.get_by_role("group", name="Instruction")).to_have_text("You are lead.")
    server = page.get_by_role("region", name="Tools of echo")
    await server.get_by_text("send_message", exact=True).click()
    await expect(server.get_by_text("Repeats <i>all</i>.")).to_be_visible()
    await expect(server.get_by_role("group", name="Input schema of send_message")).to_contain_text('"message"')
    assert await findings(page) == []
    await page.goto(f"{served.base_url}/console/#/agents/broken/details")
    instruction = page.get_by_role("region", name="Instruction")
    await expect(instruction.get_by_text("Known when the agent has started.")).to_be_visible()


@pytest.mark.needs("console-tools")
async def test_a_traced_call_links_to_its_trace(served: Running, pages: Pages) -> None:
    page = await pages.open(served.base_url, "#/agents/echo")
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("pallas_gateway")
    for message, count in (("plain", 0), ("traced", 1)):
        with traces.using(tracer) if count else nullcontext():
            await page.get_by_role("textbox", name="Message").fill(message)
            await page.get_by_role("button", name="Send").click()
            await page.get_by_role("button", name="Inspect").nth(count).click()
        dialog = page.get_by_role("dialog", name="Call")
        await expect(dialog.get_by_text("Call id")).to_be_visible()
        await expect(dialog.get_by_role("link")).to_have_count(count)
        if count:
            link = dialog.get_by_role("link", name="Open the trace")
            assert re.fullmatch(
                r"https://traces\.example/trace/[0-9a-f]{32}\?from=console", await link.get_attribute("href") or ""
            )
            assert (await link.get_attribute("target"), await link.get_attribute("rel")) == (
                "_blank",
                "noopener noreferrer",
            )
            assert await findings(page) == []
        await dialog.get_by_role("button", name="Close").click()
    await page.get_by_role("link", name="Details of Echo").click()
    await expect(page.get_by_role("group", name="Instruction")).to_have_text("You are echo.")


async def test_a_caller_without_grants_sees_no_figures_and_no_instruction(
    tmp_path_factory: pytest.TempPathFactory, pages: Pages
) -> None:
    pages.expected += ["status of 40", "status of 503"]
    keys = [{"name": "viewer", "sha256": hash_of("viewer"), "grants": ["view:agents"]}]
    project = write_project(tmp_path_factory.mktemp("grants"), {"echo": Agent()}, gateway={"auth": {"tokens": keys}})
    async with running(project) as served:
        page = await pages.open(served.base_url, "#/gateway")
        await expect(page.get_by_text("The figures are not shown: a bearer token is needed.")).to_be_visible()
        await enter(page, "viewer")
        await expect(page.get_by_text("The figures are not shown: this needs the grant view:metrics.")).to_be_visible()
        served.gateway.calls.drain()
        await page.reload()
        await expect(
            page.get_by_text("The gateway is stopping: running calls end, new ones are refused.")
        ).to_be_visible()
        await page.goto(f"{served.base_url}/console/#/agents/echo/details")
        await expect(page.get_by_role("region", name="Instruction").get_by_role("alert")).to_have_text(
            "a bearer token is needed"
        )
        await enter(page, "viewer")
        await expect(page.get_by_text("It is shown to callers with the grant view:instructions.")).to_be_visible()
        await page.close()
