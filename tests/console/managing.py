"""A gateway for the tests of agents as data in the console: a database, a server and models that are released."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from playwright.async_api import Locator, Page, expect

from pallas_gateway.identity.static_keys import hash_of
from tests.console.pages import Pages, enter
from tests.support.downstreams import stateless_downstream
from tests.support.gateway import Agent, Running, running, write_project
from tests.support.scripted_llm import LlmRequest, ScriptedLlm, Turn, call_tools, say, scripted_llm
from tests.support.watching import speaker

MODEL = "generic.test-model"
UNCONFIGURED = "azure.gpt-5"
"""A model whose provider is not configured."""
MAY_USE: Mapping[str, Any] = {
    "models": [MODEL, "generic.another", UNCONFIGURED],
    "servers": {"notes": ["add", "echo", "slow"]},
    "agents": ["*"],
    "approve": ["notes/slow"],
    "most": {"max_iterations": 20},
}
GRANTS = {
    "ada": ["create:agents", "run:agents:echo"],
    "eve": ["edit:agents", "run:agents:echo"],
    "bob": ["run:agents"],
    "ops": ["run:agents", "view:instructions", "edit:agents", "delete:agents"],
}
AUTH = {"tokens": [{"name": name, "sha256": hash_of(name), "grants": grants} for name, grants in GRANTS.items()]}


@dataclass
class Managing:
    served: Running
    llm: ScriptedLlm

    @property
    def base_url(self) -> str:
        return self.served.base_url

    async def api(
        self, method: str, path: str, body: Any = None, *, who: str | None = None, match: str = "*"
    ) -> httpx.Response:
        headers = {"If-Match": match, **({"Authorization": f"Bearer {who}"} if who else {})}
        async with httpx.AsyncClient(base_url=f"{self.base_url}/api/v1/", headers=headers, trust_env=False) as http:
            return await http.request(method, path, json=body, timeout=60)

    async def make(self, name: str, *, who: str | None = None, **more: Any) -> None:
        """Make an agent, which this process has taken up then."""
        definition = {"name": name, "instruction": f"You are {name}.", "model": MODEL, **more}
        answer = await self.api("POST", "agents?wait=true", definition, who=who)
        assert answer.status_code == 201, answer.text

    async def change(self, name: str, *, who: str | None = None, **more: Any) -> None:
        answer = await self.api("PATCH", f"agents/{name}?wait=true", more, who=who)
        assert answer.status_code == 200, answer.text

    async def remove(self, name: str, *, who: str | None = None) -> None:
        """Delete an agent, which this process does not serve any more then."""
        answer = await self.api("DELETE", f"agents/{name}?wait=true", who=who)
        assert answer.status_code == 204, answer.text


@asynccontextmanager
async def managing(path: Path, **gateway: Any) -> AsyncGenerator[Managing]:
    def script(request: LlmRequest) -> Turn:
        who, message = speaker(request), request.last_user_text
        if request.messages[-1]["role"] == "tool":
            return say(f"{who} told {' | '.join(request.tool_results.values())}")
        return call_tools([("notes__add", {"a": 1, "b": 2})]) if message == "add" else say(f"{who} heard {message}")

    settings = {"database": "sqlite:///agents.db", "agents_may_use": dict(MAY_USE), **gateway}
    settings = {key: value for key, value in settings.items() if value is not None}
    async with stateless_downstream() as notes, scripted_llm(script) as llm:
        agents = {"echo": Agent(["notes"])}
        project = write_project(
            path, agents, llm_url=llm.base_url, servers={"notes": {"url": notes.url}}, gateway=settings
        )
        async with running(project) as served:
            yield Managing(served, llm)


async def signed_in(pages: Pages, managed: Managing, who: str, view: str = "", **options: Any) -> Page:
    pages.expected.append("status of 401")
    page = await pages.open(managed.base_url, view, **options)
    await enter(page, who)
    await expect(page.get_by_role("dialog")).to_have_count(0)
    return page


async def tab_to(page: Page, wanted: Locator) -> None:
    """Press Tab until an element has the focus, as who has no mouse."""
    await expect(wanted).to_be_visible()
    for _ in range(200):
        await page.keyboard.press("Tab")
        if await wanted.evaluate("element => element === document.activeElement"):
            return
    raise AssertionError(f"Tab does not reach {wanted}")


def field(page: Page, name: str) -> Locator:
    return page.get_by_role("form", name="Agent").get_by_role("textbox", name=name, exact=True)


async def save(page: Page) -> None:
    await page.get_by_role("button", name="Save", exact=True).click()


async def runs(page: Page, version: int) -> None:
    await expect(page.get_by_text(f"Version {version} runs.")).to_be_visible()
