"""People who sign in: in a window of a real authorization server, until they sign out or it refuses."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import BrowserContext, Locator, Page, Request, Response, Route, expect
from starlette.background import BackgroundTask
from starlette.requests import Request as StarletteRequest
from starlette.responses import StreamingResponse

from pallas_gateway.identity.static_keys import hash_of
from tests.console.pages import Pages, enter, findings
from tests.console.talking import Talking, answered, log, send, talking
from tests.support.asgi import Receive, Scope, Send
from tests.support.listener import serve_app
from tests.support.oidc_provider import OidcProvider, oidc_provider
from tests.support.waiting import eventually

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.needs("oidc-provider")]

KEYS = [{"name": "key", "sha256": hash_of("a-static-key"), "grants": ["run:agents"]}]
FAR = {"exp": 2**40}
"""Claims of ID tokens for pages whose clock a test puts forward."""
STORED = "JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])"


@pytest.fixture(scope="module")
def shared() -> Generator[OidcProvider]:
    with oidc_provider() as one:
        yield one


@pytest.fixture
def provider(shared: OidcProvider, pages: Pages) -> OidcProvider:
    shared.behave()
    pages.origins.add(shared.issuer)
    pages.expected += ["status of 401", f"{shared.issuer}/favicon.ico"]  # the first round, without a token
    return shared


@asynccontextmanager
async def talking_to(path: Path, provider: OidcProvider, **gateway: Any) -> AsyncGenerator[Talking]:
    """A gateway at whose authorization server people sign in; its agents require a token."""
    async with talking(path, auth=provider.auth(tokens=KEYS), **gateway) as talk:
        yield talk


async def opened(page: Page, button: str = "Sign in") -> Page:
    """Click a button that opens the window of the authorization server, and return the window."""
    dialog = page.get_by_role("dialog")
    within = dialog if await dialog.count() else page.get_by_role("banner")
    async with page.context.expect_page() as opening:
        await within.get_by_role("button", name=button).click()
    window = await opening.value
    await expect(window.get_by_role("button", name="Sign in")).to_be_visible()
    return window


async def answer(window: Page, button: str = "Sign in") -> None:
    """Sign in, or refuse, and wait until the window has closed itself."""
    async with window.expect_event("close"):
        await window.get_by_role("button", name=button).click()


async def asked_for(page: Page) -> None:
    await expect(page.get_by_role("dialog", name="Sign in to")).to_be_visible()


async def sign_in(page: Page) -> None:
    await asked_for(page)
    await answer(await opened(page))
    await expect(page.get_by_role("dialog")).to_have_count(0)
    await expect(page.get_by_role("button", name="Sign out")).to_be_visible()


class Traffic:
    """What pages of a profile send, get from the token endpoint, and write to the browser's console."""

    def __init__(self, context: BrowserContext) -> None:
        self.requests: list[Request] = []
        self.tokens: list[dict[str, Any]] = []
        self.written: list[str] = []
        context.on("request", lambda request: self.requests.append(request))  # noqa: PLW0108  playwright marks it
        context.on("response", self._note)
        context.on("console", lambda message: self.written.append(message.text))

    async def _note(self, response: Response) -> None:
        if response.url.endswith("/token") and response.ok:
            self.tokens.append(await response.json())

    def secrets(self) -> set[str]:
        """All tokens, and the codes that were redeemed."""
        codes = {form["code"][0] for form in self.forms("/token") if "code" in form}
        names = ("access_token", "refresh_token", "id_token")
        return codes | {answer[name] for answer in self.tokens for name in names if name in answer}

    def forms(self, path: str) -> list[dict[str, list[str]]]:
        """The forms that were sent to an endpoint of the authorization server."""
        return [parse_qs(one.post_data or "") for one in self.requests if urlsplit(one.url).path == path]

    def receivers(self, secret: str) -> set[str]:
        """The origins of requests with a secret."""
        found = set()
        for one in self.requests:
            if secret in json.dumps([one.headers, one.post_data or ""]):
                parts = urlsplit(one.url)
                found.add(f"{parts.scheme}://{parts.netloc}")
        return found


@pytest.mark.journey
@pytest.mark.needs("console-tools")
async def test_a_person_signs_in_talks_and_signs_out(
    provider: OidcProvider, tmp_path: Path, pages: Pages, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with talking_to(tmp_path, provider, database="sqlite:///threads.db") as talk:
        page = await pages.open(talk.base_url, "#/agents/user")
        traffic = Traffic(page.context)
        await asked_for(page)
        assert await findings(page) == []
        window = await opened(page)
        await expect(page.get_by_role("dialog", name="Sign in")).to_contain_text("Continue in the window of 127.0.0.1:")
        assert await findings(page) == []
        await answer(window)
        await expect(page.get_by_role("dialog")).to_have_count(0)
        await expect(page.get_by_role("banner")).to_contain_text("Signed in as alice")
        await send(page, "hello")
        await answered(page, "user heard hello as number 1")
        assert await findings(page) == []
        await page.get_by_role("button", name="Sign out").click()
        dialog = page.get_by_role("dialog", name="Signed out")
        await expect(dialog).to_contain_text("has revoked them.")
        assert await findings(page) == []
        await dialog.get_by_role("button", name="Close").click()
        await expect(page.get_by_role("banner").get_by_role("button", name="Sign in")).to_be_visible()
        await expect(page.get_by_text("hello")).to_have_count(0)

        [tokens], secrets = traffic.tokens, traffic.secrets()
        assert len(secrets) == 4
        seen = [*(one.url for one in traffic.requests), *traffic.written, page.url, await page.evaluate(STORED)]
        logged = [record.getMessage() for record in caplog.records]
        at_server = [url for url in seen if url.startswith(f"{provider.issuer}/")]
        with_code = [url for url in seen if "/console/signed-in?" in url]
        assert len(with_code) == 1  # the redirect; the page replaces its address at once
        rest = [text for text in [*seen, *logged] if text not in with_code + at_server]
        assert not [text for text in rest if any(secret in text for secret in secrets)]
        assert not [url for url in at_server if any(tokens[name] in url for name in ("access_token", "refresh_token"))]
        assert traffic.receivers(tokens["access_token"]) == {talk.base_url, provider.issuer}  # here it is revoked
        assert traffic.receivers(tokens["refresh_token"]) == {provider.issuer}
        hints = [form["token_type_hint"] for form in traffic.forms("/token/revocation")]
        assert hints == [["refresh_token"], ["access_token"]]
        await page.close()


async def test_the_token_is_renewed_while_a_call_runs(provider: OidcProvider, tmp_path: Path, pages: Pages) -> None:
    async with talking_to(tmp_path, provider) as talk:
        page = await pages.open(talk.base_url, "#/agents/user")
        traffic = Traffic(page.context)
        await page.clock.install()
        await sign_in(page)
        await send(page, "name")
        question = page.get_by_role("form", name="Your name")
        await expect(question).to_be_visible()
        async with page.expect_response(f"{provider.issuer}/token") as renewing:
            await page.clock.fast_forward("50:00")
        renewed = await (await renewing.value).json()
        await question.get_by_role("textbox").first.fill("Ada")
        async with page.expect_request(lambda one: renewed["access_token"] in one.headers.get("authorization", "")):
            await question.get_by_role("button", name="Submit").click()
        await answered(page, "Ada")
        grants = [form["grant_type"] for form in traffic.forms("/token")]
        assert grants == [["authorization_code"], ["refresh_token"]]
        await expect(page.get_by_role("status").filter(has_text="sign-in")).to_have_count(0)
        await page.close()


@pytest.mark.needs("console-tools")
async def test_a_refused_renewal_loses_nothing_of_the_page(
    provider: OidcProvider, tmp_path: Path, pages: Pages
) -> None:
    pages.expected.append("status of 400")
    async with talking_to(tmp_path, provider, database="sqlite:///threads.db") as talk:
        page = await pages.open(talk.base_url, "#/agents/user")
        await page.clock.install()
        await sign_in(page)
        await send(page, "hello")
        await answered(page, "user heard hello as number 1")
        await page.get_by_role("textbox", name="Message").fill("a draft")
        provider.behave(refuse_refresh=True)
        await page.clock.fast_forward("50:00")
        notice = page.get_by_role("status").filter(has_text="Your sign-in ends at ")
        await expect(notice).to_contain_text("sign in again before. 127.0.0.1:")
        await expect(notice).to_contain_text("has refused: The test wants it so.")
        assert await findings(page) == []
        await page.clock.fast_forward("15:00")
        alert = page.get_by_role("alert").filter(has_text="Your sign-in has ended: sign in again.")
        await expect(alert).to_be_visible()
        assert await findings(page) == []
        await expect(log(page)).to_contain_text("user heard hello as number 1")
        provider.behave(id_token_claims=FAR)
        await answer(await window_of(page, alert))
        await expect(alert).to_have_count(0)
        await expect(page.get_by_role("textbox", name="Message")).to_have_value("a draft")
        await page.get_by_role("button", name="Send").click()
        await answered(page, "user heard a draft as number 2")
        await page.close()


async def test_a_renewal_without_a_network_is_tried_again(provider: OidcProvider, tmp_path: Path, pages: Pages) -> None:
    pages.expected.append("net::ERR_FAILED")
    async with talking_to(tmp_path, provider) as talk:
        page = await pages.open(talk.base_url, "#/agents/user")
        await page.clock.install()
        await sign_in(page)
        await page.route(f"{provider.issuer}/token", lambda route: route.abort())
        async with page.expect_event("requestfailed"):
            await page.clock.fast_forward("50:00")
        await expect(page.get_by_text("Your sign-in")).to_have_count(0)
        provider.behave(id_token_claims=FAR)
        # From here on the clock stands: forward, it would end a renewal that runs, whose refresh token is used up.
        await page.clock.pause_at(await page.evaluate("Date.now() / 1000 + 15 * 60"))
        await expect(page.get_by_role("alert").filter(has_text="Your sign-in has ended")).to_contain_text(
            "does not answer, or does not allow this page"
        )
        await page.unroute(f"{provider.issuer}/token")
        await page.evaluate("window.dispatchEvent(new Event('online'))")
        await page.clock.fast_forward("01:00")
        await expect(page.get_by_text("Your sign-in")).to_have_count(0)
        await expect(page.get_by_role("button", name="Sign out")).to_be_visible()
        await page.close()


async def test_a_token_that_the_gateway_refuses_before_its_end_is_renewed_once(
    provider: OidcProvider, tmp_path: Path, pages: Pages
) -> None:
    async with talking_to(tmp_path, provider) as talk:
        page = await pages.open(talk.base_url, "#/agents/user")
        traffic, state = Traffic(page.context), page.locator(".talk-head .badge")
        refused: list[str] = []
        rounds = asyncio.Semaphore(0)
        await sign_in(page)
        await expect(state).to_have_text("ok")
        await eventually(lambda: traffic.tokens, what="the tokens of the sign-in")

        async def refuse(route: Route) -> None:
            sent = route.request.headers.get("authorization", "")
            if any(one in sent for one in refused):
                await route.fulfill(status=401, json={"error_description": "The key was replaced."})
                if route.request.url.endswith("/api/rights"):
                    rounds.release()
            else:
                await route.fallback()

        async def renew_late(route: Route) -> None:
            for _ in range(3):  # further rounds are refused while the token is being renewed
                await rounds.acquire()
            await route.fallback()

        await page.route(f"{talk.base_url}/**", refuse)
        await page.route(f"{provider.issuer}/token", renew_late)
        refused.append(traffic.tokens[0]["access_token"])
        async with page.expect_response(f"{provider.issuer}/token") as renewing:
            await page.evaluate("setInterval(() => window.dispatchEvent(new Event('focus')), 500)")  # rounds go on
        renewed = (await (await renewing.value).json())["access_token"]
        async with page.expect_request(lambda one: renewed in one.headers.get("authorization", "")):
            pass
        await expect(state).to_have_text("ok")
        await expect(page.get_by_role("dialog")).to_have_count(0)
        await send(page, "hello")
        await answered(page, "user heard hello as number 1")

        refused.append("Bearer ")
        await asked_for(page)
        assert [form["grant_type"] for form in traffic.forms("/token")][1:] == [["refresh_token"], ["refresh_token"]]
        await page.close()


async def test_without_a_refresh_token_the_page_says_when_the_sign_in_ends(
    provider: OidcProvider, tmp_path: Path, pages: Pages
) -> None:
    auth = provider.auth(console_scopes=["openid", "run:agents"])
    async with talking(tmp_path, auth=auth) as talk:
        page = await pages.open(talk.base_url, "#/agents/user")
        await page.clock.install()
        await sign_in(page)
        await page.clock.fast_forward("50:00")
        notice = page.get_by_role("status").filter(has_text="Your sign-in ends at ")
        await answer(await window_of(page, notice))
        await expect(notice).to_have_count(0)
        await page.close()


async def window_of(page: Page, within: Locator) -> Page:
    async with page.context.expect_page() as opening:
        await within.get_by_role("button", name="Sign in").click()
    return await opening.value


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def talk(shared: OidcProvider, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Talking]:
    async with talking_to(tmp_path_factory.mktemp("sign_in"), shared) as one:
        yield one


async def test_programs_that_sign_in_themselves_are_connected_without_a_token(
    provider: OidcProvider, talk: Talking, pages: Pages
) -> None:
    page = await pages.open(talk.base_url, "#/connect")
    await sign_in(page)
    cards = page.get_by_role("listitem")
    await expect(cards.filter(has_text="It opens a page on which you sign in.")).to_have_count(4)
    await expect(cards.filter(has_text="claude mcp add")).not_to_contain_text("Bearer")
    await expect(cards.filter(has_text="curl '")).to_contain_text("Replace TOKEN by a key: ask whoever runs")
    await page.get_by_role("banner").get_by_role("button", name="Signed in as alice").click()
    await expect(page.get_by_role("dialog")).to_contain_text(f"token:{provider.issuer} sub alice")
    await page.close()


@pytest.mark.needs("console-tools")
@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        ({"id_token_claims": {"nonce": "wrong"}}, "its claim nonce is wrong."),
        ({"id_token_claims": {"nonce": None}}, "its claim nonce is wrong."),
        ({"id_token_claims": {"aud": "another"}}, "its claim aud is wrong."),
        ({"id_token_claims": {"iss": "https://evil.example"}}, "its claim iss is wrong."),
        ({"id_token_claims": {"exp": 1}}, "its claim exp is wrong."),
        ({"iss": "https://evil.example"}, "The answer is that of another issuer: “https://evil.example” and not “"),
        ({"iss": ""}, "The answer does not name its issuer."),
        ({"access_token_claims": {"aud": "https://other.example"}}, "does not accept this key or sign-in: "),
    ],
)
async def test_a_wrong_answer_signs_nobody_in(
    behaviour: dict[str, Any], message: str, provider: OidcProvider, talk: Talking, pages: Pages
) -> None:
    page = await pages.open(talk.base_url)
    await asked_for(page)
    provider.behave(**behaviour)
    await answer(await opened(page))
    dialog = page.get_by_role("dialog", name="Sign in")
    await expect(dialog.get_by_role("alert")).to_contain_text(message)
    await expect(page.get_by_role("button", name="Sign out")).to_have_count(0)
    assert await findings(page) == []
    provider.behave()
    await answer(await opened(page, "Try again"))
    await expect(page.get_by_role("button", name="Sign out")).to_be_visible()
    await page.close()


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"issuer": "https://evil.example"}, "The metadata is that of another issuer: “https://evil.example”"),
        ({"token_endpoint": "https://evil.example/token"}, "The token_endpoint of the authorization server is not at "),
        ({"code_challenge_methods_supported": ["plain"]}, "does not offer PKCE with S256."),
    ],
)
async def test_metadata_that_does_not_fit_is_named_and_the_window_is_closed(
    metadata: dict[str, Any], message: str, provider: OidcProvider, talk: Talking, pages: Pages
) -> None:
    page = await pages.open(talk.base_url)
    await asked_for(page)
    provider.behave(metadata=metadata)
    async with page.context.expect_page() as opening:
        await page.get_by_role("dialog").get_by_role("button", name="Sign in").click()
    window = await opening.value
    await expect(page.get_by_role("dialog", name="Sign in").get_by_role("alert")).to_contain_text(message)
    if not window.is_closed():
        await window.wait_for_event("close")
    await page.close()


@pytest.mark.needs("console-tools")
async def test_a_window_that_is_closed_is_opened_again(provider: OidcProvider, talk: Talking, pages: Pages) -> None:
    page = await pages.open(talk.base_url)
    await asked_for(page)
    window = await opened(page)
    await window.close()
    await answer(await opened(page, "Open it again"), "Refuse")
    dialog = page.get_by_role("dialog", name="Sign in")
    await expect(dialog.get_by_role("alert")).to_contain_text("has refused: The person refused.")
    window = await opened(page, "Try again")
    await dialog.get_by_role("button", name="Cancel").click()
    await expect(dialog).to_have_count(0)
    await window.clock.install()
    await window.get_by_role("button", name="Sign in").click()
    await window.wait_for_url("**/console/signed-in")
    await window.clock.fast_forward("00:11")
    await expect(window.get_by_role("status")).to_contain_text("No page of the console waits for this sign-in.")
    assert window.url == f"{talk.base_url}/console/signed-in"
    assert await findings(window) == []
    await expect(page.get_by_role("banner").get_by_role("button", name="Sign in")).to_be_visible()
    await window.close()
    await page.close()


async def test_a_window_that_the_browser_blocks_is_opened_by_a_button(
    provider: OidcProvider, talk: Talking, pages: Pages
) -> None:
    page = await pages.open(talk.base_url)
    await asked_for(page)
    await page.evaluate("window.real = window.open; window.open = () => null; 0")
    await page.get_by_role("dialog").get_by_role("button", name="Sign in").click()
    dialog = page.get_by_role("dialog", name="Sign in")
    await expect(dialog).to_contain_text("The browser has blocked the window of 127.0.0.1:")
    await page.evaluate("window.open = window.real; 0")
    await answer(await opened(page, "Open the window"))
    await expect(page.get_by_role("button", name="Sign out")).to_be_visible()
    await page.close()


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        (
            "Object.defineProperty(crypto, 'subtle', {value: undefined})",
            "Browsers sign in at pages with HTTPS or on localhost",
        ),
        ("delete window.BroadcastChannel", "it has no BroadcastChannel. Use a key instead."),
    ],
)
async def test_a_browser_that_cannot_sign_in_takes_a_key(
    missing: str, message: str, provider: OidcProvider, talk: Talking, pages: Pages
) -> None:
    page = await pages.open(talk.base_url)
    await asked_for(page)
    await page.evaluate(missing)
    await page.get_by_role("dialog").get_by_role("button", name="Sign in").click()
    dialog = page.get_by_role("dialog", name="Sign in")
    await expect(dialog.get_by_role("alert")).to_contain_text(message)
    await dialog.get_by_role("button", name="Use a key instead").click()
    await page.get_by_role("dialog", name="Sign in to").get_by_role("button", name="Use a key instead").click()
    await enter(page, "a-static-key")
    await expect(page.get_by_role("dialog")).to_have_count(0)
    await expect(page.get_by_role("banner").get_by_role("button", name="Key set")).to_be_visible()
    await page.close()


async def test_two_tabs_that_sign_in_at_once_do_not_disturb_one_another(
    provider: OidcProvider, talk: Talking, pages: Pages
) -> None:
    one = await pages.open(talk.base_url)
    await asked_for(one)
    first = await opened(one)
    two = await pages.another(one.context, talk.base_url)
    await asked_for(two)
    second = await opened(two)
    forged = await pages.another(one.context, talk.base_url, "signed-in?state=forged&code=stolen")
    await expect(forged.get_by_role("status")).not_to_be_empty()  # it has handed its answer over
    await answer(second)
    await expect(two.get_by_role("button", name="Sign out")).to_be_visible()
    await expect(one.get_by_role("dialog", name="Sign in")).to_contain_text("Continue in the window of")
    await first.bring_to_front()
    await answer(first)
    await expect(one.get_by_role("button", name="Sign out")).to_be_visible()
    await one.context.close()


@asynccontextmanager
async def below_a_path(base_url: str) -> AsyncGenerator[str]:
    """A proxy that serves a gateway below a path, and the URL of that."""
    async with httpx.AsyncClient(base_url=base_url, trust_env=False, timeout=60) as http:

        async def relay(scope: Scope, receive: Receive, send: Send) -> None:
            request = StarletteRequest(scope, receive)
            path, body = request.url.path.removeprefix("/pallas"), await request.body()
            asked = http.build_request(request.method, path, headers=request.headers.raw, content=body)
            got = await http.send(asked, stream=True)
            headers = {name: got.headers[name] for name in got.headers if name != "transfer-encoding"}
            answer = StreamingResponse(got.aiter_raw(), got.status_code, headers, background=BackgroundTask(got.aclose))
            await answer(scope, receive, send)

        async with serve_app(relay) as proxy:
            yield f"{proxy.base_url}/pallas"


async def test_people_sign_in_below_a_path_of_a_proxy(provider: OidcProvider, talk: Talking, pages: Pages) -> None:
    async with below_a_path(talk.base_url) as url:
        page = await pages.open(url)
        await sign_in(page)
        await expect(page.get_by_role("banner")).to_contain_text("alice")
        await page.close()


@pytest.mark.needs("console-tools")
async def test_the_name_of_a_person_is_text(provider: OidcProvider, talk: Talking, pages: Pages) -> None:
    name = f"<img src=x onerror=alert(1)>\u202e{'long ' * 40}"
    provider.behave(id_token_claims={"name": name})
    page = await pages.open(talk.base_url)
    await sign_in(page)
    person = page.get_by_role("banner").locator(".person")
    await expect(person).to_contain_text("Signed in as <img src=x onerror=alert(1)>⟨U+202E⟩long")
    assert len(await person.inner_text()) < 100
    await page.set_viewport_size({"width": 390, "height": 800})
    assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert await findings(page) == []
    await page.close()


async def test_a_person_signs_in_with_the_keyboard_and_replaces_it_by_a_key(
    provider: OidcProvider, talk: Talking, pages: Pages
) -> None:
    pages.expected.append("net::ERR_FAILED")
    page = await pages.open(talk.base_url)
    await asked_for(page)
    await page.keyboard.press("Escape")
    await expect(page.locator("dialog")).to_have_count(0)  # it has returned the focus
    await page.get_by_role("banner").get_by_role("button", name="Sign in").focus()
    async with page.context.expect_page() as opening:
        await page.keyboard.press("Enter")
    window = await opening.value
    await expect(page.get_by_role("button", name="Open it again")).to_be_visible()
    assert await page.evaluate("document.activeElement.closest('dialog') !== null")
    await window.get_by_role("button", name="Sign in").focus()
    async with window.expect_event("close"):
        await window.keyboard.press("Enter")
    await expect(page.get_by_role("button", name="Sign out")).to_be_visible()
    await page.route(f"{provider.issuer}/token/revocation", lambda route: route.abort())
    await page.get_by_role("button", name="Sign out").focus()
    await page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="Signed out")
    await expect(dialog).to_contain_text("They are not revoked: 127.0.0.1:")
    async with page.context.expect_page() as opening:
        await dialog.get_by_role("button", name="Sign out there too").click()
    there = await opening.value
    await expect(there.get_by_role("button", name="Continue")).to_be_visible()
    assert "id_token" not in there.url
    await page.close()
