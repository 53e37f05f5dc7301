"""`login` and `logout` with a real OpenID provider, and the client commands that use their token."""

import json
import os
import re
import signal
import stat
import sys
import time
import webbrowser
from collections.abc import Callable, Generator
from pathlib import Path
from queue import Queue
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from pallas_gateway.client.sign_in import browser
from pallas_gateway.client.sign_in.authorization_server import AuthorizationServer, OAuthError, Offer, http_client
from pallas_gateway.client.sign_in.logins import default_path
from pallas_gateway.identity.static_keys import hash_of
from tests.support.commands import READY_SECONDS, Command, Program, Ran, started
from tests.support.gateway import Agent, write_project
from tests.support.oidc_provider import CLIENT_ID, OidcProvider, oidc_provider

pytestmark = pytest.mark.needs("oidc-provider")
KEY = {"name": "ci", "sha256": hash_of("key-of-ci"), "grants": ["run:agents"]}
PUBLIC = "https://agents.example.com"
# The person's browser: signs in at the URL of its argument, in a process of its own.
BROWSER = """
import sys
from tests.support.oidc_provider import OidcProvider
OidcProvider("").sign_in(sys.argv[1])
"""


@pytest.fixture(scope="module")
def shared() -> Generator[OidcProvider]:
    with oidc_provider() as one:
        yield one


@pytest.fixture(scope="module")
def guarded(shared: OidcProvider, tmp_path_factory: pytest.TempPathFactory) -> Generator[Program]:
    """A gateway whose people sign in; the token decides what its registry lists."""
    folder = tmp_path_factory.mktemp("guarded") / "project"
    auth = shared.auth(registry="filtered", tokens=[KEY])
    write_project(folder, {"echo": Agent(), "other": Agent()}, gateway={"auth": auth, "console": False})
    with started(["serve"], folder) as program:
        program.wait_for("Try:")
        yield program
        program.signal(signal.SIGTERM)
        program.end()


@pytest.fixture
def provider(shared: OidcProvider) -> OidcProvider:
    shared.behave()
    return shared


class Person:
    """Somebody at the terminal, whose browser opens what `login` has it open."""

    def __init__(self, run: Command, url: str, provider: OidcProvider, state: Path) -> None:
        self.run, self.url, self.provider = run, url, provider
        self.path = default_path({"XDG_STATE_HOME": str(state)}, Path())
        self.opened = 0
        self._pages: Queue[httpx.Response] = Queue()
        self.does: Callable[[str], httpx.Response] = provider.sign_in

    def open(self, url: str) -> bool:
        self.opened += 1
        self._pages.put(self.does(url))
        return True

    def page(self) -> httpx.Response:
        """The page at which the browser has ended; the command may end before it is shown."""
        return self._pages.get(timeout=READY_SECONDS)

    def login(self, *options: str) -> Ran:
        return self.run("login", "--url", self.url, *options)

    @property
    def stored(self) -> dict[str, Any]:
        return dict(json.loads(self.path.read_text())["logins"][self.url])

    def store(self, **changes: Any) -> None:
        document = json.loads(self.path.read_text())
        document["logins"][self.url] |= changes
        self.path.write_text(json.dumps(document))

    def agents(self, *options: str) -> Ran:
        return self.run("agents", "--url", self.url, *options)


@pytest.fixture
def person(
    run: Command, guarded: Program, provider: OidcProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Person:
    one = Person(run, guarded.url, provider, tmp_path / "state")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("BROWSER", "one with windows")
    monkeypatch.setattr(webbrowser, "open", one.open)
    return one


def test_the_commands_use_the_token_of_a_sign_in(person: Person) -> None:
    assert "registry shows no agents" in person.run("call", "echo", "hi", "--url", person.url).err
    signed_in = person.login()
    assert (signed_in.code, signed_in.out) == (0, f"Signed in at {person.url} as alice.\n")
    assert f"{person.url} has people sign in at {person.provider.issuer}." in signed_in.err
    page = person.page()
    assert (page.status_code, "return to the terminal" in page.text) == (200, True)
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    url = ["--url", person.url]
    assert person.run("call", "echo", "hi", *url).out == "hi\n"
    assert person.run("chat", "echo", "-m", "hi", "--db", ":memory:", *url).out.endswith("hi\n")
    for command in (["agents"], ["health"], ["calls"], ["usage"], ["connect", "curl", "echo"]):
        assert person.run(*command, *url).code == 0, command
    assert "alice" in person.run("usage", *url).out


def test_the_tokens_are_in_a_file_of_the_owner_alone_and_printed_nowhere(person: Person) -> None:
    printed = [person.login(), person.agents(), person.run("connect", "curl", "echo", "--url", person.url)]
    assert stat.S_IMODE(person.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(person.path.parent.stat().st_mode) == 0o700
    stored = person.stored
    for secret in (stored["access_token"], stored["refresh_token"]):
        assert all(secret not in one.out + one.err for one in printed)
    assert (stored["issuer"], stored["resource"]) == (person.provider.issuer, person.url)


def test_a_token_of_the_command_line_comes_first(person: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    person.login()
    assert "refused: the token is malformed (HTTP 401)." in person.agents("--bearer", "wrong").err
    monkeypatch.setenv("PALLAS_BEARER", "key-of-ci")
    assert person.run("usage", "--url", person.url).out.startswith("key:ci")


def test_the_token_is_for_its_gateway_alone(person: Person, gateway: Program) -> None:
    person.login()
    document = json.loads(person.path.read_text())
    assert list(document["logins"]) == [person.url]
    # As another name of the same machine, it is another gateway.
    assert "No agent" in person.run("call", "echo", "hi", "--url", person.url.replace("localhost", "127.0.0.1")).err
    assert person.run("agents", "--url", gateway.url).code == 0


def test_a_token_is_renewed_before_it_ends(person: Person) -> None:
    person.login()
    before = person.stored
    assert before["expires_at"] - before["renew_at"] == pytest.approx(60)
    person.store(renew_at=0)
    assert person.agents().code == 0
    after = person.stored
    assert after["access_token"] != before["access_token"]
    assert after["refresh_token"] != before["refresh_token"]
    assert after["expires_at"] > time.time() + 3000
    assert person.agents().code == 0
    assert person.stored == after


def test_processes_that_renew_at_once_renew_once(person: Person, tmp_path: Path) -> None:
    """Else the server would see a refresh token that was used before, and end the sign-in."""
    person.login()
    person.store(renew_at=0)
    arguments = ["agents", "--url", person.url]
    with (
        started(arguments, tmp_path) as one,
        started(arguments, tmp_path) as two,
        started(arguments, tmp_path) as three,
    ):
        ended = [program.end(READY_SECONDS) for program in (one, two, three)]
    assert [(ran.code, ran.err) for ran in ended] == [(0, "")] * 3
    person.store(renew_at=0, expires_at=0)
    assert person.agents().code == 0


def test_a_server_without_rotation_keeps_the_refresh_token(person: Person) -> None:
    person.login()
    before = person.stored
    person.store(renew_at=0, expires_at=0)
    person.provider.behave(token={"refresh_token": None})
    assert person.agents().code == 0
    assert person.stored["refresh_token"] == before["refresh_token"]


def test_a_refused_renewal_says_what_to_do(person: Person) -> None:
    person.login()
    person.store(renew_at=0, expires_at=0)
    person.provider.behave(refuse_refresh=True)
    ran = person.agents()
    assert ran.code == 1
    assert ran.err.startswith(f"The sign-in has ended ({person.provider.issuer} refused: invalid_grant")
    assert ran.err.endswith(f"Sign in again: pallas-gateway login --url {person.url}\n")
    person.provider.behave()
    assert person.login().code == 0
    assert person.agents().code == 0


def test_a_sign_in_without_refresh_token_ends(person: Person) -> None:
    person.provider.behave(token={"refresh_token": None})
    person.login()
    assert person.agents().code == 0
    person.store(renew_at=0, expires_at=0)
    assert "gave no token to renew it" in person.agents().err


@pytest.mark.parametrize(("expires_in", "code"), [(600, 0), (-1, 1)])
def test_without_the_authorization_server_a_token_is_used_until_its_end(
    expires_in: float, code: int, person: Person
) -> None:
    person.login()
    person.store(issuer="http://127.0.0.1:1", renew_at=0, expires_at=time.time() + expires_in)
    ran = person.agents()
    assert ran.code == code
    assert ("The authorization server http://127.0.0.1:1 does not answer" in ran.err) == (code == 1)


def test_a_token_that_the_gateway_does_not_accept_any_more_says_what_to_do(person: Person) -> None:
    person.provider.behave(access_token_claims={"aud": "http://other.example"})
    person.login()
    ran = person.agents()
    assert ran.code == 1
    assert "the token is for another audience (HTTP 401). Sign in again: pallas-gateway login --url " in ran.err


def test_without_a_token_the_commands_name_login_where_it_is_offered(
    person: Person, run: Command, gateway: Program
) -> None:
    hint = f"Sign in by `pallas-gateway login --url {person.url}`, or give a token with --bearer or PALLAS_BEARER."
    for command in (["usage"], ["calls"]):
        ran = run(*command, "--url", person.url)
        assert (ran.code, hint in ran.err) == (1, True), ran.err


def test_logout_deletes_and_revokes(person: Person) -> None:
    person.login()
    refresh_token = person.stored["refresh_token"]
    assert person.run("logout", "--url", person.url).out == f"Signed out at {person.url}.\n"
    assert person.provider.token("refresh_token", refresh_token=refresh_token).json()["error"] == "invalid_grant"
    assert json.loads(person.path.read_text())["logins"] == {}
    again = person.run("logout", "--url", person.url)
    assert (again.code, again.out) == (0, f"You are not signed in at {person.url}.\n")
    assert person.run("logout", "--all").out == "You are not signed in at any gateway.\n"


def test_logout_deletes_where_tokens_cannot_be_revoked(person: Person) -> None:
    person.login()
    person.provider.behave(metadata={"revocation_endpoint": None})
    ran = person.run("logout", "--all")
    assert (ran.code, "revokes no tokens: those of" in ran.err) == (0, True)
    person.login()
    person.store(issuer="http://127.0.0.1:1")
    ran = person.run("logout", "--url", person.url)
    assert (ran.code, "were deleted here, and not revoked" in ran.err) == (0, True)
    assert json.loads(person.path.read_text())["logins"] == {}


def test_a_browser_of_the_environment_opens(guarded: Program, provider: OidcProvider, tmp_path: Path) -> None:
    (tmp_path / "browser.py").write_text(BROWSER)
    environ = {
        "XDG_STATE_HOME": str(tmp_path),
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "BROWSER": f"{sys.executable} {tmp_path / 'browser.py'} %s",
    }
    with started(["login", "--url", guarded.url], tmp_path, environ=environ) as program:
        ran = program.end(READY_SECONDS)
    assert (ran.code, ran.out) == (0, f"Signed in at {guarded.url} as alice.\n")
    assert provider.issuer in ran.err


@pytest.mark.parametrize("options", [["--device"], []])
def test_a_device_code_works_without_a_browser(
    options: list[str], guarded: Program, provider: OidcProvider, tmp_path: Path
) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path), "BROWSER": "", "DISPLAY": "", "WAYLAND_DISPLAY": ""}
    with started(["login", "--url", guarded.url, *options], tmp_path, environ=environ) as program:
        program.wait_for("The same with the code in it:")
        assert re.search(r"enter the code [A-Z]{4}-[A-Z]{4}:", program.err)
        provider.approve_device(program.err.rpartition("in it: ")[2].strip())
        ran = program.end(READY_SECONDS)
    assert (ran.code, ran.out) == (0, f"Signed in at {guarded.url} as alice.\n")


def test_a_device_code_may_be_refused(guarded: Program, provider: OidcProvider, tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    with started(["login", "--url", guarded.url, "--device"], tmp_path, environ=environ) as program:
        program.wait_for("The same with the code in it:")
        provider.approve_device(program.err.rpartition("in it: ")[2].strip(), refuse=True)
        ran = program.end(READY_SECONDS)
    assert (ran.code, "refused: access_denied" in ran.err) == (1, True)


def test_a_server_without_device_codes_says_so(person: Person) -> None:
    person.provider.behave(device=False)
    ran = person.login("--device")
    assert (ran.code, "offers no sign-in by a code. Start again without --device." in ran.err) == (1, True)


def test_ctrl_c_ends_the_wait(guarded: Program, provider: OidcProvider, tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    with started(["login", "--url", guarded.url, "--no-browser"], tmp_path, environ=environ) as program:
        program.wait_for(f"{provider.issuer}/auth?")
        program.signal(signal.SIGINT)
        ran = program.end()
    assert (ran.code, ran.err.splitlines()[-1]) == (1, "cancelled")
    assert not (tmp_path / "pallas-gateway/logins.json").exists()


# Hostile answers


def test_other_requests_to_the_listener_change_nothing(person: Person) -> None:
    answers: list[int | None] = []

    def attack(url: str) -> httpx.Response:
        callback = parse_qs(urlsplit(url).query)["redirect_uri"][0]
        state = parse_qs(urlsplit(url).query)["state"][0]
        base = callback.removesuffix("/callback")
        with httpx.Client(trust_env=False) as http:
            for method, target in (
                ("GET", f"{callback}?code=stolen&state=wrong"),
                ("GET", f"{callback}?code=stolen"),
                ("GET", f"{callback}?error=access_denied&state="),
                ("GET", f"{callback}?code=a&code=b&state={state}"),
                ("GET", f"{callback}?state={state}&{'&'.join(f'p{n}=' for n in range(50))}"),
                ("POST", f"{callback}?code=stolen&state={state}"),
                ("GET", f"{base}/"),
                ("GET", f"{base}/favicon.ico"),
                ("GET", f"{base}/callback/more?state={state}"),
                ("GET", f"{base}/{'x' * 20_000}"),
            ):
                try:
                    answers.append(http.request(method, target).status_code)
                except httpx.HTTPError:
                    answers.append(None)
        return person.provider.sign_in(url)

    person.does = attack
    assert person.login().code == 0
    assert answers == [400, 400, 400, 400, None, 405, 404, 404, 404, None]
    assert person.page().status_code == 200


def test_the_person_may_refuse(person: Person) -> None:
    person.does = lambda url: person.provider.sign_in(url, answer="no")
    ran = person.login()
    assert ran.code == 1
    assert ran.err.endswith(f"{person.provider.issuer} refused: access_denied: The person refused.\n")
    assert not person.path.exists()


@pytest.mark.parametrize(
    ("behaviour", "why"),
    [
        ({"iss": "http://evil.example"}, "it names the issuer 'http://evil.example'"),
        ({"iss": ""}, "it names the issuer 'None'"),
        ({"metadata": {"issuer": "http://evil.example"}}, "is the metadata of another issuer ('http://evil.example')"),
        ({"metadata": {"token_endpoint": "http://evil.example/token"}}, "token_endpoint: must begin with https://"),
        (
            {"metadata": {"authorization_endpoint": "javascript:alert(1)"}},
            "authorization_endpoint: must be an absolute",
        ),
        ({"metadata": {"jwks_uri": None}}, "answered without an ID token that can be verified"),
        ({"metadata": {"padding": "x" * 2**20}}, "its answer is larger than 512 KiB"),
        ({"id_token_claims": {"nonce": "wrong"}}, "it is of another sign-in (nonce)"),
        ({"id_token_claims": {"nonce": None}}, "it is of another sign-in (nonce)"),
        ({"id_token_claims": {"aud": "other"}}, "the token is for another audience"),
        ({"id_token_claims": {"azp": "other"}}, "it was issued to another client (azp)"),
        ({"id_token_claims": {"iss": "http://evil.example"}}, "the token is of another issuer"),
        ({"id_token_claims": {"exp": 1}}, "the token has expired"),
        ({"foreign_signature": True}, "the token's signature is wrong"),
        ({"token": {"id_token": None}}, "answered without an ID token that can be verified"),
        ({"token": {"access_token": None}}, "answered without a token"),
        ({"token": {"access_token": "a\nb"}}, "answered without a token"),
        ({"token": {"token_type": "mac"}}, "answered with a token that is no bearer token"),
        ({"token": {"padding": "x" * 2**20}}, "its answer is larger than 512 KiB"),
    ],
)
def test_answers_that_are_not_accepted_store_nothing(behaviour: dict[str, Any], why: str, person: Person) -> None:
    person.provider.behave(**behaviour)
    ran = person.login()
    assert (ran.code, why in ran.err) == (1, True), ran.err
    assert "Traceback" not in ran.err
    assert not person.path.exists()


async def test_the_wait_for_the_person_is_bounded(provider: OidcProvider, capsys: pytest.CaptureFixture[str]) -> None:
    """Such as where the server shows an error on a page of its own, for a `resource` that it does not know."""
    offer = Offer(issuer=provider.issuer, client_id=CLIENT_ID, scopes=("openid",), resource=None)
    async with http_client() as http:
        server = await AuthorizationServer.discover(provider.issuer, http)
        with pytest.raises(OAuthError, match=r"Nobody signed in within 0\.01 s"):
            await browser.sign_in(server, offer, opens=False, seconds=0.01)
    assert "To sign in, open this page on this machine:" in capsys.readouterr().err


# Gateways at which nobody can sign in


def test_a_gateway_without_sign_in_says_what_to_do(run: Command, gateway: Program) -> None:
    ran = run("login", "--url", gateway.url)
    assert ran.code == 1
    assert "offers no sign-in: `gateway.auth.console_client_id` in its agents.yaml enables it" in ran.err


def test_no_one_signs_in_over_clear_text(run: Command) -> None:
    ran = run("login", "--url", "http://agents.example.com")
    assert (ran.code, "is not HTTPS" in ran.err) == (2, True)
    assert run("login", "--url", "agents.example.com").code == 2


def test_a_token_for_another_gateway_is_not_requested(run: Command, provider: OidcProvider, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    write_project(folder, {"echo": Agent()}, gateway={"auth": provider.auth(), "public_url": PUBLIC})
    with started(["serve"], folder) as program:
        program.wait_for("Try:")
        url = re.search(r"http://(?:localhost|127\.0\.0\.1):\d+", program.out + program.err)
        assert url is not None, program.out + program.err
        ran = run("login", "--url", url[0])
        program.signal(signal.SIGTERM)
        program.end()
    assert ran.code == 1
    assert f"wants a token for {PUBLIC}: sign in with --url {PUBLIC}" in ran.err


# The file


def test_a_file_that_others_can_read_is_not_used(person: Person) -> None:
    person.login()
    person.path.chmod(0o644)
    for ran in (person.agents(), person.login(), person.run("logout", "--all")):
        assert (ran.code, "is not yours alone" in ran.err) == (2, True)
        assert f"chmod 600 {person.path}" in ran.err
    assert person.agents("--bearer", "key-of-ci").code == 0
    person.path.chmod(0o600)
    assert person.agents().code == 0


@pytest.mark.parametrize(
    "content", ["", "{", "{}", "[]", '{"format": 1}', '{"format": 2}', '{"format": 1, "logins": {"a": {"issuer": 1}}}']
)
def test_a_broken_file_is_left_as_it_is(content: str, person: Person) -> None:
    person.login()
    person.path.write_text(content)
    for ran in (person.agents(), person.login(), person.run("logout", "--all")):
        assert (ran.code, "is not a file of sign-ins. It is left as it is; move it away" in ran.err) == (2, True)
    assert person.path.read_text() == content


def test_a_folder_that_cannot_be_made_is_reported_before_the_person_signs_in(person: Person, tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    ran = person.login()
    assert (ran.code, "cannot be written: Not a directory" in ran.err) == (2, True)
    assert person.opened == 0


def test_a_read_only_folder_loses_no_sign_in(person: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    person.login()
    person.store(renew_at=0)
    before = person.stored
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda *_: False)  # as for root, whom the mode of a folder does not stop
        assert person.agents().code == 0  # the token is used until its end
        person.store(renew_at=0, expires_at=0)
        ran = person.agents()
        assert (ran.code, "its folder is read-only. Nothing was changed." in ran.err) == (2, True)
    assert person.stored["refresh_token"] == before["refresh_token"]
    assert person.agents().code == 0


def test_commands_import_no_more_than_before(tmp_path: Path) -> None:
    loaded = (
        "import pallas_gateway.cli.commands, sys; print([n for n in ('httpx', 'joserfc', 'mcp') if n in sys.modules])"
    )
    with started([], tmp_path, command=("-c", loaded), is_real=True) as program:
        assert program.end(READY_SECONDS).out == "[]\n"
