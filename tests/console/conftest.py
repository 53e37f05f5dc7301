"""Fixtures of the console's tests: Chromium, and pages that are watched for what the console must never do.

All of these tests run in one event loop, in which the browser lives:
`pytestmark = pytest.mark.asyncio(loop_scope="session")`.
"""

from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Playwright, async_playwright, expect

from tests.console.pages import Pages
from tests.support_programs import program

_FLAGS = (
    "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
)  # fmt: skip


async def launched(playwright: Playwright) -> Browser:
    # Chromium's own sandbox cannot be used by root, as which CI runs; the pages are our own.
    return await playwright.chromium.launch(executable_path=program("chromium"), args=_FLAGS, chromium_sandbox=False)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave tests in the browser to `make test-all`, but for one or two of each view, which have the mark `journey`."""
    for item in items:
        if "pages" in getattr(item, "fixturenames", ()) and item.get_closest_marker("journey") is None:
            item.add_marker(pytest.mark.whole)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncGenerator[Browser]:
    """One Chromium for all tests."""
    expect.set_options(timeout=30_000)  # a busy machine is slow
    async with async_playwright() as playwright:
        one = await launched(playwright)
        yield one
        await one.close()


@pytest_asyncio.fixture(loop_scope="session")
async def pages(browser: Browser) -> AsyncGenerator[Pages]:
    """Opens pages of the console; at the end fails for errors, violations and requests to other origins."""
    opened = Pages(browser)
    try:
        yield opened
    finally:
        await opened.close()
    opened.check()
