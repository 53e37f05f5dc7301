"""The frames of the console while it draws a call of 1,000 events that arrive at once, from a trace of the browser.

A frame is a task of the page's main thread, and its time the CPU of that thread: a busy machine makes it no longer.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Any

from benchmarks import contenders
from benchmarks.figures import Bounds, figure
from benchmarks.processes import HOST
from benchmarks.project import Agent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.async_api import Browser, Route

    from benchmarks.bench import Bench

EVENTS = 1000
_CATEGORIES = ["devtools.timeline", "disabled-by-default-devtools.timeline", "toplevel"]
_SECONDS = 120


async def measure(bench: Bench) -> None:
    """The longest frame of several calls, each in a new page."""
    chromium = shutil.which("chromium")
    longest = None
    if chromium is None:
        bench.say("console: not measured, chromium is not installed")
    else:
        longest = figure([max(await _frames(bench, chromium)) for _ in range(bench.plan.rounds)])
        bench.results["console"] = {"longest_frame_ms": asdict(longest)}
    title = f"console, longest frame (CPU) while a call of {EVENTS:,} events is drawn"
    bench.check("console", title, longest, Bounds(50, 33, at_least=False), "ms")


async def _frames(bench: Bench, chromium: str) -> list[float]:
    """Milliseconds of each frame of one call."""
    from playwright.async_api import async_playwright  # noqa: PLC0415  a library of the tests

    agents = {"parrot": Agent(contenders.llm_url(bench.llm))}
    async with contenders.gateway(bench.new_folder(), agents) as gateway, async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, chromium_sandbox=False)
        try:
            return _tasks(await _traced(browser, f"http://{HOST}:{gateway['parrot'].process.port}"))
        finally:
            await browser.close()


async def _traced(browser: Browser, base_url: str) -> dict[str, Any]:
    page = await browser.new_page(viewport={"width": 1280, "height": 800})
    page.set_default_timeout(_SECONDS * 1000)
    await page.route("**/agents/parrot/mcp", _answer)
    await page.goto(f"{base_url}/console/#/agents/parrot")
    await page.get_by_role("textbox", name="Message").fill("go")
    await page.get_by_text("ok", exact=True).wait_for()
    await browser.start_tracing(page=page, categories=_CATEGORIES)
    await page.get_by_role("button", name="Send").click()
    await page.get_by_role("button", name="Inspect").wait_for()
    return dict(json.loads(await browser.stop_tracing()))


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


async def _answer(route: Route) -> None:
    request = json.loads(route.request.post_data or "{}")
    if request.get("params", {}).get("name") != "send_message":
        await route.continue_()
        return
    result = {"jsonrpc": "2.0", "id": request["id"], "result": {"content": [{"type": "text", "text": "The end."}]}}
    told = [*map(_notification, islice(_payloads(), EVENTS)), result]
    body = "".join(f"data: {json.dumps(one)}\n\n" for one in told)
    await route.fulfill(status=200, content_type="text/event-stream", body=body)


def _notification(payload: dict[str, Any]) -> dict[str, Any]:
    params = {"level": "info", "logger": "pallas.assistant_stream", "data": {"schema_version": 2, **payload}}
    return {"jsonrpc": "2.0", "method": "notifications/message", "params": params}


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
