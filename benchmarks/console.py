"""The console: the frames in which it draws, from traces of the browser, and the time to its first page on a slow line.

A frame is a task of the page's main thread, and its time the CPU of that thread: a busy machine makes it no longer.
"""

from __future__ import annotations

import json
import shutil
from contextlib import asynccontextmanager
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Any

from benchmarks import contenders
from benchmarks.figures import Bounds, figure
from benchmarks.processes import HOST
from benchmarks.project import Agent

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from playwright.async_api import Browser, Page, Route

    from benchmarks.bench import Bench

EVENTS = 1000
CONVERSATIONS = 500
_FRAME = Bounds(50, 33, at_least=False)
_FIRST_PAGE = Bounds(4, 3, at_least=False)
_LATENCY_MS = 400
_BITS_PER_SECOND = 400_000
_TURNS = 4
_TURNS_OF_EVENTS = 112  # LLM turns of `_payloads` that so many events are
# Selectors that cost the page nothing: those of roles and names visit all elements, in its frames.
_BOX = ".composer textarea"
_SEND = ".composer button[type=submit]"
_ENDED = ".turn > .reply > .actions"
_STEPS = ".turn > .reply > .steps > summary"
_CATEGORIES = ["devtools.timeline", "disabled-by-default-devtools.timeline", "toplevel"]
_SECONDS = 120
_STATE_SHOWN = """() => {
  const query = '//*[normalize-space(text())="ok"]';
  const states = () => document.evaluate(query, document, null, XPathResult.ANY_UNORDERED_NODE_TYPE);
  const observer = new MutationObserver(() => {
    if (!states().singleNodeValue) return;
    observer.disconnect();
    requestAnimationFrame(() => setTimeout(() => (window.shownAt = performance.now())));
  });
  const whole = {childList: true, subtree: true, characterData: true};
  document.addEventListener('DOMContentLoaded', () => observer.observe(document, whole));
}"""
_KEEP = """([count, asked, agent, events]) => new Promise((resolve) => {
  const opening = indexedDB.open('pallas-gateway-console');
  opening.onsuccess = ({target: {result: database}}) => {
    const writing = database.transaction('conversations', 'readwrite');
    const url = new URL(`../agents/${agent}/mcp`, location.href).href;
    for (let number = 0; number < count; number += 1) {
      const turns = [...Array(asked).keys()].map((index) => ({
        id: crypto.randomUUID(), message: `Question ${index} of conversation ${number}`, images: [], params: {},
        began: number, state: 'complete', error: '',
        result: {content: [{type: 'text', text: 'An **answer**. '.repeat(20)}]},
        events: events.map((message) => ({at: 1, message})), leftOut: 0,
      }));
      const head = {id: crypto.randomUUID(), agent: url, title: '', created: number, changed: number};
      writing.objectStore('conversations').put({...head, turns});
    }
    writing.oncomplete = () => { database.close(); resolve(); };
  };
})"""


async def measure(bench: Bench) -> None:
    """Each scenario several times, each time in a new page."""
    await bench.run(SCENARIOS, bench)


async def _events(bench: Bench) -> None:
    title = f"console, longest frame (CPU) while a call of {EVENTS:,} events is drawn"
    await _check(bench, "console", title, _FRAME, lambda: _longest_frame(bench, _call_of(_payloads)))


async def _text(bench: Bench) -> None:
    title = f"console, longest frame (CPU) while a text of {EVENTS:,} pieces grows"
    await _check(bench, "console-text", title, _FRAME, lambda: _longest_frame(bench, _call_of(_pieces)))


async def _stored(bench: Bench) -> None:
    title = (
        f"console, longest frame (CPU) while the steps of a stored call of {EVENTS:,} events are opened and scrolled"
    )
    await _check(bench, "console-stored", title, _FRAME, lambda: _longest_frame(bench, _reopened))


async def _list(bench: Bench) -> None:
    title = f"console, longest frame (CPU) with {CONVERSATIONS} conversations: opened, scrolled, chosen and asked"
    await _check(bench, "console-list", title, _FRAME, lambda: _longest_frame(bench, _among_many))


async def _first_page(bench: Bench) -> None:
    title = f"console, agents with their states at {_LATENCY_MS} ms and {_BITS_PER_SECOND // 1000} kbit/s"
    await _check(bench, "console-first-page", title, _FIRST_PAGE, lambda: _seconds_to_first_page(bench))


SCENARIOS = {
    "console": _events,
    "console-text": _text,
    "console-stored": _stored,
    "console-list": _list,
    "console-first-page": _first_page,
}


async def _check(bench: Bench, identity: str, title: str, bounds: Bounds, once: Callable[[], Any]) -> None:
    measured = None
    if shutil.which("chromium") is None:
        bench.say(f"{identity}: not measured, chromium is not installed")
    else:
        measured = figure([await once() for _ in range(bench.plan.rounds)])
        bench.results.setdefault("console", {})[identity] = asdict(measured)
    bench.check(identity, title, measured, bounds, "s" if bounds is _FIRST_PAGE else "ms")


async def _longest_frame(bench: Bench, act: Callable[[Browser, Page], Any]) -> float:
    """Milliseconds of the longest frame while a page of the chat is used."""
    async with _browser(bench) as (browser, base_url):
        page = await browser.new_page(viewport={"width": 1280, "height": 800})
        page.set_default_timeout(_SECONDS * 1000)
        await page.goto(f"{base_url}/console/#/agents/parrot")
        await page.get_by_text("ok", exact=True).wait_for()
        await act(browser, page)
        return max(_tasks(json.loads(await browser.stop_tracing())))


async def _seconds_to_first_page(bench: Bench) -> float:
    async with _browser(bench) as (browser, base_url):
        page = await browser.new_page(viewport={"width": 1280, "height": 800})
        page.set_default_timeout(_SECONDS * 1000)
        network = await page.context.new_cdp_session(page)
        await network.send("Network.enable")
        bytes_per_second = _BITS_PER_SECOND / 8
        line = {"latency": _LATENCY_MS, "downloadThroughput": bytes_per_second, "uploadThroughput": bytes_per_second}
        await network.send("Network.emulateNetworkConditions", {"offline": False, **line})
        await page.add_init_script(f"({_STATE_SHOWN})()")
        await page.goto(f"{base_url}/console/")
        await page.wait_for_function("() => window.shownAt !== undefined")
        milliseconds: float = await page.evaluate("window.shownAt")
        return milliseconds / 1000


@asynccontextmanager
async def _browser(bench: Bench) -> AsyncIterator[tuple[Browser, str]]:
    """A browser, and the URL of a gateway with an agent."""
    from playwright.async_api import async_playwright  # noqa: PLC0415  a library of the tests

    agents = {"parrot": Agent(contenders.llm_url(bench.llm))}
    async with contenders.gateway(bench.new_folder(), agents) as gateway, async_playwright() as playwright:
        chromium = shutil.which("chromium")
        browser = await playwright.chromium.launch(executable_path=chromium, chromium_sandbox=False)
        try:
            yield browser, f"http://{HOST}:{gateway['parrot'].process.port}"
        finally:
            await browser.close()


def _call_of(payloads: Callable[[], Iterator[dict[str, Any]]]) -> Callable[[Browser, Page], Any]:
    async def call(browser: Browser, page: Page) -> None:
        await page.route("**/agents/parrot/mcp", _answer_with(payloads))
        await page.locator(_BOX).fill("go")
        await browser.start_tracing(page=page, categories=_CATEGORIES)
        await page.locator(_SEND).click()
        await page.locator(_ENDED).wait_for()

    return call


async def _reopened(browser: Browser, page: Page) -> None:
    """Look at the steps of a call that was read from the browser's store, to the last one."""
    await page.route("**/agents/parrot/mcp", _answer_with(_payloads))
    await page.locator(_BOX).fill("go")
    await page.locator(_SEND).click()
    await page.locator(_ENDED).wait_for()
    await browser.start_tracing(page=page, categories=_CATEGORIES)
    await page.reload()
    await page.locator(_STEPS).click()
    await page.locator(f"{_STEPS} + .entries > .turn-card").first.wait_for()
    await page.locator(".log").hover()
    for _ in range(20):
        await page.mouse.wheel(0, 800)
    await page.locator(f"{_STEPS} + .entries > .turn-card:nth-child({_TURNS_OF_EVENTS})").wait_for()


async def _among_many(browser: Browser, page: Page) -> None:
    """Open the chat, scroll the list, choose one, and send it a message."""
    events = [_notification(one) for one in islice(_payloads(), 20)]
    await page.evaluate(_KEEP, [CONVERSATIONS, _TURNS, "parrot", events])
    await page.route("**/agents/parrot/mcp", _answer_with(_payloads))
    chat = page.url
    await page.goto("about:blank")
    await browser.start_tracing(page=page, categories=_CATEGORIES)
    await page.goto(chat)
    await page.locator(".conversation").first.wait_for()
    await page.locator(".talk-head .badge.ok").wait_for()
    await page.locator(".conversations > summary").hover()
    for _ in range(20):
        await page.mouse.wheel(0, 800)
    await page.locator('.conversation[title="Question 0 of conversation 7"]').click()
    await page.locator(_ENDED).nth(_TURNS - 1).wait_for()
    await page.locator(_BOX).press_sequentially("go on")
    await page.locator(_SEND).click()
    await page.locator(_ENDED).nth(_TURNS).wait_for()


def _tasks(trace: dict[str, Any]) -> list[float]:
    """Milliseconds of CPU of each task of the page's main thread."""
    events = trace["traceEvents"]
    is_main = {
        (one["pid"], one["tid"])
        for one in events
        if one["name"] == "thread_name" and one["args"]["name"] == "CrRendererMain"
    }
    tasks = (one for one in events if one["name"] == "RunTask" and (one["pid"], one["tid"]) in is_main)
    return [one.get("tdur", 0) / 1000 for one in tasks]


def _answer_with(payloads: Callable[[], Iterator[dict[str, Any]]]) -> Callable[[Route], Any]:
    async def answer(route: Route) -> None:
        request = json.loads(route.request.post_data or "{}")
        if request.get("params", {}).get("name") != "send_message":
            await route.continue_()
            return
        result = {"jsonrpc": "2.0", "id": request["id"], "result": {"content": [{"type": "text", "text": "The end."}]}}
        told = [*map(_notification, islice(payloads(), EVENTS)), result]
        body = "".join(f"data: {json.dumps(one)}\n\n" for one in told)
        await route.fulfill(status=200, content_type="text/event-stream", body=body)

    return answer


def _notification(payload: dict[str, Any]) -> dict[str, Any]:
    params = {"level": "info", "logger": "pallas.assistant_stream", "data": {"schema_version": 2, **payload}}
    return {"jsonrpc": "2.0", "method": "notifications/message", "params": params}


def _pieces() -> Iterator[dict[str, Any]]:
    """Pieces of one text without an empty line for long: a code block of half of them, a list, and a paragraph."""
    head = {"agent": "parrot", "iteration": 1}
    yield {"kind": "assistant_delta", **head, "text": "# A text\n\n```python\n"}
    for number in range(EVENTS // 2):
        yield {"kind": "assistant_delta", **head, "text": f"value_{number} = compute({number})\n"}
    yield {"kind": "assistant_delta", **head, "text": "```\n\n"}
    for number in range(EVENTS // 4):
        yield {
            "kind": "assistant_delta",
            **head,
            "text": f"- item **{number}** of `many`, and [a link](https://a.example)\n",
        }
    yield {"kind": "assistant_delta", **head, "text": "\n\n"}
    while True:
        yield {"kind": "assistant_delta", **head, "text": "A *long* paragraph that has `code` in it, and goes on. "}


def _payloads() -> Iterator[dict[str, Any]]:
    """Turns of live text and of a tool call, each of which a peer answers that calls a tool itself."""
    turn = 0
    while True:
        turn += 1
        head, peer = {"agent": "parrot", "iteration": turn}, {"agent": "peer", "call_path": [f"c{turn}"]}
        pieces = [f"Some **text** of turn {turn}, piece {piece}. " for piece in range(4)]
        for text in pieces:
            yield {"kind": "assistant_delta", **head, "text": text}
        yield _chunk(head, "".join(pieces), _call(f"c{turn}", "peer", {"message": "x" * 200}))
        yield _chunk({**peer, "iteration": 1}, "- one\n- two\n", _call("t1", "files", {"path": "/a/b"}))
        yield _results({**peer, "iteration": 1}, "t1", "result " * 50)
        yield _chunk({**peer, "iteration": 2}, "`code` and [a link](https://example.com)")
        yield _results(head, f"c{turn}", "done")


def _chunk(head: dict[str, Any], text: str, *calls: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "assistant_chunk", **head, "text": text, "tool_calls": calls, "stop_reason": "endTurn"}


def _call(id_: str, server: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"id": id_, "server": server, "name": "work", "arguments": arguments}


def _results(head: dict[str, Any], id_: str, text: str) -> dict[str, Any]:
    one = {"id": id_, "is_error": False, "text": text, "truncated": False, "duration_seconds": 0.1}
    return {"kind": "assistant_chunk_results", **head, "results": [one]}
