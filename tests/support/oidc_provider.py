"""A real OpenID provider, `oidc-provider` in Node, as people sign in at it (tests/authorization_server).

`authorization_server.py` is for tests of tokens alone: it runs in the process of the test, and mints any token.
"""

import base64
import hashlib
import re
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit

import httpx

from tests.support_programs import program

CLIENT_ID = "pallas-console"
_VERIFIER = "v" * 43
_FOLDER = Path(__file__).parents[1] / "authorization_server"
_FORM = re.compile(r"<form[^>]*>.*?</form>", re.DOTALL)
_ACTION = re.compile(r'<form[^>]* action="([^"]*)"')
_INPUT = re.compile(r'<input[^>]* name="([^"]*)"[^>]* value="([^"]*)"')


@dataclass(frozen=True)
class OidcProvider:
    """The running provider; `server.mjs` says what `behave` takes."""

    issuer: str

    def behave(self, **behaviour: Any) -> None:
        """Replace the behaviour; without arguments it is that of a good server."""
        httpx.post(f"{self.issuer}/behaviour", json=behaviour, trust_env=False).raise_for_status()

    def auth(self, **settings: Any) -> dict[str, Any]:
        jwt = {"issuer": self.issuer, "jwks_uri": f"{self.issuer}/jwks"}
        return {"jwt": jwt, "console_client_id": CLIENT_ID, **settings}

    def sign_in(self, url: str, *, answer: str = "yes") -> httpx.Response:
        """Do what a person does in a browser: open `url`, sign in or refuse; return the last page, at the client."""
        with httpx.Client(trust_env=False, follow_redirects=True, timeout=30) as browser:
            page = browser.get(url)
            if "/interaction/" not in str(page.url):
                return page
            return browser.post(page.url, data={"answer": answer})

    def redirect(self, url: str, *, answer: str = "yes") -> str:
        """Sign in or refuse, and return the client's URL with the authorization response, unopened."""
        with httpx.Client(trust_env=False, timeout=30) as browser:
            answered = browser.get(url)
            while "location" in answered.headers:
                where = urljoin(str(answered.url), answered.headers["location"])
                if not where.startswith(self.issuer):
                    return where
                answered = browser.get(where)
                if answered.is_success and "/interaction/" in where:
                    answered = browser.post(where, data={"answer": answer})
        raise AssertionError(f"no authorization response: {answered.status_code} {answered.text[:500]}")

    def tokens(self, resource: str | None, *scopes: str, redirect: str = "http://127.0.0.1:1/callback") -> Any:
        """Sign in by the code flow with PKCE, and return the answer of the token endpoint."""
        challenge = base64.urlsafe_b64encode(hashlib.sha256(_VERIFIER.encode()).digest()).rstrip(b"=").decode()
        audience = {"resource": resource} if resource is not None else {}
        query = {
            "client_id": CLIENT_ID, "response_type": "code", "redirect_uri": redirect, "state": "s", "nonce": "n",
            "scope": " ".join(("openid", "offline_access", *scopes)), "prompt": "consent",
            "code_challenge": challenge, "code_challenge_method": "S256", **audience,
        }  # fmt: skip
        answer = dict(parse_qsl(urlsplit(self.redirect(f"{self.issuer}/auth?{urlencode(query)}")).query))
        form = {"code": answer["code"], "redirect_uri": redirect, "code_verifier": _VERIFIER, **audience}
        return self.token("authorization_code", **form).raise_for_status().json()

    def token(self, grant_type: str, **form: str) -> httpx.Response:
        fields = {"grant_type": grant_type, "client_id": CLIENT_ID, **form}
        return httpx.post(f"{self.issuer}/token", data=fields, trust_env=False)

    def approve_device(self, verification_url: str, *, refuse: bool = False) -> None:
        """Do what a person does at a device's `verification_uri_complete`: continue, sign in, confirm or refuse."""
        with httpx.Client(trust_env=False, follow_redirects=True, timeout=30) as browser:
            page = browser.get(verification_url)
            while "<form" in page.text:
                if 'name="answer"' in page.text:
                    page = browser.post(page.url, data={"answer": "yes"})
                    continue
                action, fields = _form(page)
                if refuse and "op.deviceConfirmForm" in page.text:
                    browser.post(action, data={**fields, "abort": "yes"})
                    return
                page = browser.post(action, data=fields)


def _form(page: httpx.Response) -> tuple[str, dict[str, str]]:
    found = _FORM.search(page.text)
    assert found is not None
    action = _ACTION.search(found[0])
    assert action is not None
    return urljoin(str(page.url), action[1]), dict(_INPUT.findall(found[0]))


@contextmanager
def oidc_provider(*post_logout_redirect_uris: str) -> Generator[OidcProvider]:
    node = program("oidc-provider")
    # Ends with its standard input, even if this process is killed.
    with subprocess.Popen(
        [node, _FOLDER / "server.mjs", *post_logout_redirect_uris],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            yield OidcProvider(process.stdout.readline().strip())
        finally:
            process.kill()
