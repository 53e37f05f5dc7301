"""A gateway for the tests of the chat: agents that call each other, ask, hang, and answer what is hostile."""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.async_api import Locator, Page, expect

from tests.console.pages import Pages
from tests.support.asking import Asking, asking_downstream
from tests.support.gateway import Agent, Running, running, write_project
from tests.support.listener import reserved_port
from tests.support.scripted_llm import LlmRequest, ScriptedLlm, Turn, call_tools, hang, say, scripted_llm, stream
from tests.support.waiting import Gate
from tests.support.watching import speaker

CALLS: Mapping[str, list[tuple[str, str]]] = {
    "root": [("left", ".l"), ("right", ".r1"), ("right", ".r2")],
    "left": [("leaf", ".x")],
    "right": [("leaf", ".y"), ("leaf", ".z")],
    "boss": [("user", "")],
}
"""The peers that each agent calls, and what it adds to the message."""
SERVERS: Mapping[str, list[str]] = {
    "root": ["left", "right"],
    "left": ["leaf"],
    "right": ["leaf"],
    "leaf": [],
    "user": ["asking"],
    "boss": ["user"],
}
HOSTILE = "\n\n".join(
    [
        "<script>window.pwned = 1</script><img src=x onerror='window.pwned = 2'>",
        "[click](javascript:window.pwned=3) and [bank](https://bank.example@evil.example/x)",
        "![pixel](https://tracker.example/pixel.png)",
        "\u202egnp.exe \u2066 \u0000 end",
        "</div></main><style>*{display:none}</style>",
    ]
)


NOTHING_IS_STORED = "() => { IDBObjectStore.prototype.put = () => { throw new Error('the disk is full'); }; }"
"""Has a page store nothing more in the browser."""


@dataclass
class Talking:
    served: Running
    llm: ScriptedLlm
    asking: Asking
    gate: Gate = field(default_factory=Gate)

    @property
    def base_url(self) -> str:
        return self.served.base_url


@asynccontextmanager
async def talking(
    path: Path, *, of_agents: Mapping[str, dict[str, Any]] | None = None, **gateway: Any
) -> AsyncGenerator[Talking]:
    """Serve the agents of `SERVERS`; `user` asks its caller, and needs an approval for destructive tools.

    `of_agents` are further settings of agents, `gateway` settings of the gateway.
    """
    gate = Gate()

    def script(request: LlmRequest) -> Turn:
        who, message = speaker(request), request.last_user_text
        if request.tool_results and request.messages[-1]["role"] == "tool":
            return say(f"{who} told {message}: {' | '.join(request.tool_results.values())}"[:300])
        if who == "user":
            return _of_user(message, len(request.user_texts), gate)
        if message.startswith("hang"):
            return (
                hang(gate)
                if who == "leaf"
                else call_tools([(f"{CALLS[who][0][0]}__send_message", {"message": message})])
            )
        if not (wanted := CALLS.get(who)):
            return say(f"{who} heard {message}")
        return call_tools([(f"{peer}__send_message", {"message": message + mark}) for peer, mark in wanted])

    broken = Agent(source="raise ValueError('the key is missing')\n")
    with ExitStack() as stack:
        ports = {name: stack.enter_context(reserved_port()) for name in SERVERS}
        settings = {"user": {"approve": ["destructive"], "model_capabilities": {"vision": False}}}
        agents = {
            name: Agent(
                servers, settings={"port": ports[name], **settings.get(name, {}), **(of_agents or {}).get(name, {})}
            )
            for name, servers in SERVERS.items()
        }
        agents |= {"broken": broken, "weak": Agent(["gone"])}
        peers = {name: {"url": f"http://localhost:{port}/mcp"} for name, port in ports.items()}
        async with scripted_llm(script) as llm, asking_downstream("modern") as asking:
            servers = {**peers, "asking": {"url": asking.url}, "gone": {"url": "http://127.0.0.1:9/mcp"}}
            async with running(
                write_project(path, agents, llm_url=llm.base_url, servers=servers, gateway=gateway or None)
            ) as served:
                yield Talking(served, llm, asking, gate)
                gate.open()


def _of_user(message: str, turns: int, gate: Gate) -> Turn:
    word, _, rest = message.partition(" ")
    turn_of: dict[str, Callable[[], Turn]] = {
        **dict.fromkeys(("name", "pay"), lambda: call_tools([(f"asking__{word}", {})])),
        "both": lambda: call_tools([("asking__name", {}), ("asking__pay", {})]),
        "wipe": lambda: call_tools([("asking__wipe", {"path": HOSTILE if rest == "all" else rest})]),
        "hostile": lambda: say(HOSTILE),
        "hang": lambda: hang(gate),
        "stream": lambda: stream(["# One\n\n", "two **three**\n\n", "- four"], gate),
        "long": lambda: say("word " * int(rest)),
    }
    return turn_of.get(word, lambda: say(f"user heard {message} as number {turns}"))()


async def chat(pages: Pages, talk: Talking, agent: str, message: str = "", **options: Any) -> Page:
    """Open the chat with an agent, and send it a message in a new conversation."""
    page = await pages.open(talk.base_url, f"#/agents/{agent}", **options)
    if message:
        await begin(page)
        await send(page, message)
    return page


async def begin(page: Page) -> None:
    """Open a new conversation in a page that may still read the list, whose latest one it opens then."""
    await expect(page.get_by_role("textbox", name="Message")).to_be_visible()
    await expect(page.get_by_text("Reading the conversations…")).to_have_count(0)
    if await page.locator(".conversation[aria-current=true]").count():
        await page.get_by_role("button", name="New conversation").click()


async def send(page: Page, message: str) -> None:
    await page.get_by_role("textbox", name="Message").fill(message)
    await page.get_by_role("button", name="Send").click()


async def answered(page: Page, text: str) -> None:
    """Wait until a call has ended, and its answer shows the text."""
    await expect(log(page)).to_contain_text(text)  # also of a call that runs
    await expect(page.get_by_role("button", name="Stop", exact=True)).to_have_count(0)
    await expect(log(page).get_by_role("article").last.get_by_role("button", name="Inspect")).to_be_visible()


def log(page: Page) -> Locator:
    return page.get_by_role("log", name="Conversation")


def tool(within: Page | Locator, name: str) -> Locator:
    return within.get_by_role("group", name=name, exact=True)


async def outline(page: Page) -> list[str]:
    """Return the groups of tool calls and the texts in them, by depth."""
    return list(
        await page.evaluate(
            """() => {
              const lines = [];
              const visit = (element, depth) => {
                for (const child of element.children) {
                  if (child.matches('.tool')) {
                    lines.push('  '.repeat(depth) + child.getAttribute('aria-label'));
                    visit(child, depth + 1);
                  } else if (child.matches('.markdown')) lines.push('  '.repeat(depth) + child.textContent);
                  else visit(child, depth);
                }
              };
              visit(document.querySelector('[role=log]'), 0);
              return lines;
            }"""
        )
    )
