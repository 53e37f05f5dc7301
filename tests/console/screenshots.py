"""Takes the pictures of the console for the documentation: `make screenshots`.

The example agents answer in them, so they need no key. Those of agents as data show a project with a database, that of
the sign-in one with an authorization server, which is not asked.
"""

import asyncio
import sys
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
from PIL import Image
from playwright.async_api import Browser, Page, ViewportSize, async_playwright, expect

from tests.console.conftest import launched
from tests.console.pages import WIDE
from tests.support.commands import started
from tests.support.gateway import declare_project

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
TALL: ViewportSize = {"width": 1280, "height": 1500}
LOW: ViewportSize = {"width": 1280, "height": 480}
PHONE: ViewportSize = {"width": 390, "height": 844}
COLOURS = 256
"""Of a picture: a palette takes a third of the bytes, and a page has few colours."""
ISSUER = "https://login.example.com/realms/company"
MODEL = "generic.qwen3-32b"
MAY_USE: Mapping[str, Any] = {
    "models": [MODEL, "generic.qwen3-8b"],
    "servers": {"library": ["search", "now"]},
    "agents": ["librarian"],
    "most": {"max_iterations": 20},
}
DRAFT = """# News desk

You edit the news of the day. Today is {{currentDate}}.

- Search the `library` for facts.
- Write **three** sentences.
"""
MADE: Mapping[str, Any] = {
    **{"title": "News desk", "description": "Finds facts, and writes about them.", "model": MODEL},
    **{"servers": ["library"], "tools": ["library__search"], "examples": ["What is new in the library?"]},
    **{"instruction": DRAFT, "params": {"temperature": 0.3}},
}
CHANGED: Mapping[str, Any] = {
    **MADE,
    **{"description": "Finds facts, and writes four sentences about them.", "agents": ["librarian"]},
    **{"instruction": f"{DRAFT.replace('three', 'four')}- Name the source of each.\n", "maxIterations": 8},
}


async def shoot(browser: Browser, url: str, name: str, view: str, viewport: ViewportSize = WIDE) -> None:
    context = await browser.new_context(color_scheme="light", viewport=viewport)
    page = await context.new_page()
    await page.goto(f"{url}/console/{view}")
    await _PREPARE[name](page)
    taken = await page.screenshot()
    await context.close()
    with Image.open(BytesIO(taken)) as picture:
        picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(IMAGES / f"{name}.png", optimize=True)


async def _agents(page: Page) -> None:
    agents = page.get_by_role("listitem")
    await expect(agents).not_to_have_count(0)
    await expect(page.get_by_text("Checked at")).to_be_visible()
    # A downstream of a busy machine may be late at first: the next round is after a minute.
    for agent in await agents.all():
        await expect(agent.get_by_text("ok", exact=True).first).to_be_visible(timeout=90_000)
    await expect(page.get_by_role("textbox", name="Ask an agent")).to_be_visible()
    await expect(page.get_by_text("just now").first).to_be_visible()  # the calls of the chat


async def _chat(page: Page) -> None:
    await page.get_by_role("textbox", name="Message").fill("What is a peer?")
    await page.get_by_role("button", name="Send").click()
    await expect(page.get_by_role("button", name="Retry")).to_be_enabled(timeout=60_000)


async def _compare(page: Page) -> None:
    await page.get_by_role("textbox", name="Message").fill("What is a peer?")
    await page.get_by_role("button", name="Send", exact=True).click()
    figures = page.get_by_role("table", name="Comparison of the last answers").get_by_role("row")
    for row in (1, 2):
        await expect(figures.nth(row)).to_contain_text("s", timeout=60_000)
    await expect(page.get_by_role("button", name="Retry")).to_have_count(2)


async def _run_tool(page: Page) -> None:
    tools = page.get_by_role("region", name="Tools of library")
    await tools.get_by_text("search", exact=True).first.click()
    await tools.get_by_role("button", name="Run this tool").click()
    await tools.get_by_label("query (required)").fill("peer")
    await tools.get_by_role("button", name="Run", exact=True).click()
    await expect(tools.get_by_text("The tool has answered")).to_be_visible()
    await tools.evaluate("(element) => element.scrollIntoView()")


async def _sign_in(page: Page) -> None:
    await expect(page.get_by_role("dialog", name="Sign in to")).to_contain_text("sign in at login.example.com")


async def _gateway(page: Page) -> None:
    await expect(page.get_by_text("Configuration loaded")).to_be_visible()
    await expect(page.get_by_role("group", name="Graph").locator("text", has_text="library")).to_be_visible(
        timeout=30_000
    )


async def _calls(page: Page) -> None:
    calls = page.get_by_role("table", name="Ended calls").get_by_role("row")
    await calls.filter(has=page.get_by_role("rowheader", name="concierge")).get_by_role("button").first.click()
    await expect(page.get_by_role("dialog", name="Call").get_by_role("group", name="Steps")).to_be_visible()


async def _form(page: Page) -> None:
    await expect(page.get_by_text("are not known now")).to_have_count(0)
    await page.get_by_role("button", name="Preview").click()
    await expect(page.get_by_role("region", name="Preview of the instruction")).to_contain_text("four")


async def _versions(page: Page) -> None:
    await expect(page.get_by_role("group", name="Changed lines of the instruction")).to_be_visible()


_PREPARE = {
    "console-agent-form": _form,
    "console-versions": _versions,
    "console-agents": _agents,
    "console-calls": _calls,
    "console-chat": _chat,
    "console-compare": _compare,
    "console-gateway": _gateway,
    "console-phone": _chat,
    "console-run-tool": _run_tool,
    "console-sign-in": _sign_in,
}


async def main() -> None:
    """Serve the example and write all pictures."""
    IMAGES.mkdir(exist_ok=True)
    with started(
        ["serve", "--config", "agents.example.yaml", "--port", "0"], ROOT, is_real=True
    ) as program:  # the example sets a variable
        await asyncio.to_thread(program.wait_for, "Try:")
        async with async_playwright() as playwright:
            browser = await launched(playwright)
            await shoot(browser, program.url, "console-chat", "#/agents/concierge")
            await shoot(browser, program.url, "console-agents", "")
            await shoot(browser, program.url, "console-calls", "#/calls")
            await shoot(browser, program.url, "console-gateway", "#/gateway")
            await shoot(browser, program.url, "console-compare", "#/compare/concierge/research")
            await shoot(browser, program.url, "console-run-tool", "#/agents/research/details")
            await shoot(browser, program.url, "console-phone", "#/agents/concierge", PHONE)
            await _shoot_agents_as_data(browser)
            await _shoot_sign_in(browser)
            await browser.close()


async def _shoot_agents_as_data(browser: Browser) -> None:
    library = {"command": sys.executable, "args": ["-m", "pallas_gateway.example.downstream"]}
    provider = {"api_key": "not-a-key", "base_url": "http://127.0.0.1:9"}
    librarian = {"instruction": "You know the library.", "servers": ["library"], "title": "Librarian", "model": MODEL}
    with TemporaryDirectory() as folder:
        declare_project(
            path := Path(folder),
            {"librarian": librarian},
            servers={"library": library},
            fastagent={"default_model": MODEL, "generic": provider},
            gateway={"database": "sqlite:///agents.db", "agents_may_use": dict(MAY_USE)},
        )
        with started(["serve"], path) as program:
            await asyncio.to_thread(program.wait_for, "Try:")
            async with httpx.AsyncClient(base_url=f"{program.url}/api/v1/", trust_env=False, timeout=60) as http:
                made = await http.post("agents?wait=true", json={"name": "newsdesk", **MADE})
                changed = await http.put("agents/newsdesk?wait=true", json=dict(CHANGED), headers={"If-Match": "*"})
            assert (made.status_code, changed.status_code) == (201, 200), (made.text, changed.text)
            await shoot(browser, program.url, "console-versions", "#/agents/newsdesk/versions")
            await shoot(browser, program.url, "console-agent-form", "#/agents/newsdesk/edit", TALL)


async def _shoot_sign_in(browser: Browser) -> None:
    auth = {"jwt": {"issuer": ISSUER, "jwks_uri": f"{ISSUER}/jwks"}, "console_client_id": "pallas-console"}
    librarian = {"instruction": "You know the library.", "title": "Librarian", "model": "passthrough"}
    with TemporaryDirectory() as folder:
        declare_project(path := Path(folder), {"librarian": librarian}, gateway={"auth": auth})
        with started(["serve"], path) as program:
            await asyncio.to_thread(program.wait_for, "Console:")
            await shoot(browser, program.url, "console-sign-in", "", LOW)


if __name__ == "__main__":
    asyncio.run(main())
