"""Pages of the console in a browser, watched: their errors, policy violations and requests to other origins."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, Request, ViewportSize

AXE = Path(__file__).parent / "node_modules/axe-core/axe.min.js"
SCHEMES: tuple[Literal["light"], Literal["dark"]] = ("light", "dark")
NARROW: ViewportSize = {"width": 360, "height": 740}
WIDE: ViewportSize = {"width": 1280, "height": 800}


@dataclass
class Pages:
    """Opens pages, each in a browser profile of its own.

    Attributes:
        expected: parts of console errors that the test causes, such as `status of 401`. A refused connection is no
            error of a page: nothing listens there, because a test stops its gateway before its pages are closed.
        origins: that pages may request besides their own.
    """

    browser: Browser
    expected: list[str] = field(default_factory=lambda: ["net::ERR_CONNECTION_REFUSED"])
    origins: set[str] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    _contexts: list[BrowserContext] = field(default_factory=list)

    async def open(
        self,
        base_url: str,
        view: str = "",
        *,
        scheme: Literal["light", "dark"] = "light",
        narrow: bool = False,
        **context: Any,
    ) -> Page:
        """Open a view of the console at `base_url`, such as `#/agents/echo`."""
        made = await self.browser.new_context(color_scheme=scheme, viewport=NARROW if narrow else WIDE, **context)
        made.set_default_timeout(15_000)
        self._contexts.append(made)
        made.on("console", self._note)  # of all pages, also of windows that a page opens
        made.on("weberror", lambda event: self.errors.append(f"{event.error}"))
        return await self.another(made, base_url, view)

    async def another(self, context: BrowserContext, base_url: str, view: str = "") -> Page:
        page = await context.new_page()
        own = {_origin(base_url)}

        def note(request: Request) -> None:  # a route would see each one, too, and let Chromium cache nothing
            if _origin(request.url) not in own | self.origins:
                self.foreign.append(request.url)

        page.on("request", note)
        await page.goto(f"{base_url}/console/{view}")
        return page

    def check(self) -> None:
        unexpected = [error for error in self.errors if not any(part in error for part in self.expected)]
        assert not unexpected, unexpected
        assert not self.foreign, self.foreign

    async def close(self) -> None:
        for context in self._contexts:
            await context.close()

    def _note(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):  # a violation of the content security policy is an error
            self.errors.append(f"{message.text} ({message.location.get('url')})")


async def findings(page: Page) -> list[str]:
    """Return the problems that axe finds in a page, light and dark: its rules of WCAG 2.2 AA and its best practices."""
    await page.evaluate(AXE.read_text(encoding="utf-8"))
    found = []
    for scheme in SCHEMES:
        await page.emulate_media(color_scheme=scheme)
        result = await page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        found += [
            f"{scheme}: {one['id']}: {one['help']}: {json.dumps([node['html'] for node in one['nodes']])[:500]}"
            for one in result["violations"]
        ]
    return found


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


COPIED = """(name) => [...document.querySelectorAll('button.copy')].some((button) =>
  button.ariaLabel === name && button.textContent === 'Copied' && button.nextElementSibling.textContent === 'Copied')"""


@asynccontextmanager
async def shows_copied(page: Page, name: str) -> AsyncGenerator[None]:
    """Expect that a button that copies says so, under a name of its own; it does for two seconds only.

    The page itself looks for it, in each frame: this process may be too slow to see it.
    """
    async with asyncio.TaskGroup() as group:
        group.create_task(page.wait_for_function(COPIED, arg=name))
        yield


async def enter(page: Page, token: str, *, keep: bool = False) -> None:
    dialog = page.get_by_role("dialog", name="Sign in to")
    if not await dialog.is_visible():  # the page asks for a token itself once it was refused
        await page.get_by_role("banner").get_by_role("button").dispatch_event("click")
    await dialog.get_by_label("Key").fill(token)
    if keep:
        await dialog.get_by_role("checkbox").check()
    await dialog.get_by_role("button", name="Use this key").click()
