"""The console where gateways stand: below a path of nginx and Caddy with TLS, on ports of their own, with workers."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, ExitStack
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from pallas_gateway.config.loading.loader import Overrides
from tests.console.pages import Pages
from tests.deploy.ingress import Place, caddy_below, nginx_below, place
from tests.support.certificates import TLS_FILES, write_certificate
from tests.support.commands import started
from tests.support.gateway import Agent, running, write_project
from tests.support.listener import reserved_port
from tests.support.scripted_llm import hang, scripted_llm, stream
from tests.support.waiting import Gate

type Below = Callable[[str, Place, int], AbstractAsyncContextManager[None]]

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def shows_echo(page: Page) -> None:
    card = page.get_by_role("listitem").filter(has=page.get_by_role("link", name="Echo", exact=True))
    await expect(card.get_by_text("ok", exact=True)).to_be_visible()
    await page.get_by_role("link", name="Connect", exact=True).click()
    await expect(page.get_by_text("claude mcp add")).to_be_visible()


@pytest.mark.journey
@pytest.mark.parametrize("ingress", [nginx_below, caddy_below])
async def test_it_works_below_a_path_with_tls(ingress: Below, tmp_path: Path, pages: Pages) -> None:
    with place(tmp_path / "ingress") as at:
        gateway = {"public_url": f"{at.url}/pallas"}
        project = write_project(tmp_path / "project", {"echo": Agent()}, gateway=gateway)
        async with running(project) as served, ingress("/pallas/", at, served.gateway.addresses.registry_port):
            page = await pages.open(f"{at.url}/pallas", ignore_https_errors=True)
            await shows_echo(page)
            await expect(page.get_by_text(f"'{at.url}/pallas/mcp'").first).to_be_visible()
            await page.goto(f"{at.url}/pallas/")
            assert page.url == f"{at.url}/pallas/console/"
            await shows_echo(page)


async def test_with_tls_of_the_gateway_six_connections_are_enough(tmp_path: Path, pages: Pages) -> None:
    write_certificate(tmp_path)
    gate = Gate()
    async with scripted_llm(lambda _: stream(["Some words. ", "The end."], gate)) as llm:
        gateway = {"tls": {key: f"../{name}" for key, name in TLS_FILES.items()}}
        project = write_project(
            tmp_path / "project", {"echo": Agent(), "other": Agent()}, llm_url=llm.base_url, gateway=gateway
        )
        async with running(project) as served:
            url = served.base_url.replace("http:", "https:")
            chats = await pages.open(url, "#/compare/echo/other", ignore_https_errors=True)
            await chats.get_by_role("textbox", name="Message").fill("go on")
            await chats.get_by_role("button", name="Send", exact=True).click()
            await expect(chats.get_by_role("log").get_by_text("Some words.")).to_have_count(2)
            calls = await pages.another(chats.context, url, "#/calls")
            rows = calls.get_by_role("table", name="Running calls").locator("tbody").get_by_role("row")
            await expect(rows).to_have_count(2)
            spoken = "performance.getEntriesByType('navigation')[0].nextHopProtocol"
            assert await calls.evaluate(spoken) == "http/1.1"
            gate.open()
            await expect(calls.get_by_text("No call is running.")).to_be_visible()
            await expect(chats.get_by_role("button", name="Inspect")).to_have_count(2)
            await calls.close()  # it asks for calls, which it does not get from a gateway that stops


async def test_per_port_it_is_on_the_registrys_port(tmp_path: Path, pages: Pages) -> None:
    with ExitStack() as reserved:
        registry, one = (reserved.enter_context(reserved_port()) for _ in range(2))
        agents = {"echo": Agent(settings={"port": one})}
        deployment = {"registry_port": registry, "host": "localhost"}
        project = write_project(tmp_path, agents, gateway={"host": "127.0.0.1"}, deployment=deployment)
        pages.origins = {f"http://localhost:{one}"}
        async with running(project, overrides=Overrides(per_port=True)) as served:
            page = await pages.open(served.base_url)
            await shows_echo(page)
            await page.close()  # it asks for states, which it does not get from a gateway that stops


async def test_several_workers_find_and_stop_a_call_of_the_page_that_was_reloaded(tmp_path: Path, pages: Pages) -> None:
    gate = Gate()
    async with scripted_llm(lambda _: hang(gate)) as llm:
        settings = {"port": 0, "database": "sqlite:///threads.db", "threads_lease_seconds": 2}
        project = write_project(tmp_path, {"echo": Agent()}, llm_url=llm.base_url, gateway=settings)
        with started(["serve", "--workers", "2"], project.path) as program:
            await asyncio.to_thread(program.wait_for, "Try:")  # the model is probed meanwhile
            page = await pages.open(program.url)
            await shows_echo(page)
            await page.goto(f"{program.url}/console/#/agents/echo")
            await page.get_by_role("textbox", name="Message").fill("wait")
            await page.get_by_role("button", name="Send").click()
            await gate.wait_for_entered()
            await page.reload()
            await page.get_by_role("button", name="Stop").click()
            await expect(page.get_by_text("Stopped.")).to_be_visible()
            await llm.wait_for_aborted(1)
