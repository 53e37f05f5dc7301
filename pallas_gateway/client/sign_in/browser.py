"""Sign-in in a browser on this machine: authorization code with PKCE, redirected to a loopback port (RFC 8252).

The listener answers one redirect that carries this sign-in's `state`. Other requests change nothing.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import secrets
import sys
import webbrowser
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from pallas_gateway.client.output import problem
from pallas_gateway.client.sign_in.authorization_server import AuthorizationServer, OAuthError, Offer, refusal
from pallas_gateway.daemon_threads import begin
from pallas_gateway.urls import LOOPBACK

WAIT_SECONDS = 300.0
"""How long the person may take to sign in."""
_PATH = "/callback"
_LARGEST_HEAD = 16_384
_HEAD_SECONDS = 10.0
_MOST_CONNECTIONS = 16
_DONE = "The answer has arrived. Close this page and return to the terminal."
_HEADERS = (
    "Content-Type: text/plain; charset=utf-8\r\nCache-Control: no-store\r\nReferrer-Policy: no-referrer\r\n"
    "X-Content-Type-Options: nosniff\r\nContent-Security-Policy: default-src 'none'; frame-ancestors 'none'\r\n"
    "Connection: close\r\n"
)


def opens_a_browser(environ: Mapping[str, str], platform: str = sys.platform) -> bool:
    """Return True if a browser with windows can probably be opened; text browsers would take over the terminal."""
    if environ.get("BROWSER") or platform == "darwin":
        return True
    return bool(environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY"))


@dataclass(frozen=True, slots=True)
class BrowserRequest:
    """An authorization request, and what its answer is checked with."""

    redirect_uri: str
    state: str
    nonce: str
    verifier: str

    def url(self, server: AuthorizationServer, offer: Offer) -> str:
        """Return the URL that the person opens."""
        challenge = base64.urlsafe_b64encode(hashlib.sha256(self.verifier.encode()).digest()).rstrip(b"=").decode()
        query = {
            "response_type": "code",
            "client_id": offer.client_id,
            "redirect_uri": self.redirect_uri,
            "scope": " ".join(offer.scopes),
            "state": self.state,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        if offer.expects_id_token:
            query["nonce"] = self.nonce
        if offer.resource is not None:
            query["resource"] = offer.resource
        if "offline_access" in offer.scopes:
            query["prompt"] = "consent"  # without it, OpenID Connect has servers ignore that scope
        endpoint = server.metadata.authorization_endpoint
        return f"{endpoint}{'&' if urlsplit(endpoint).query else '?'}{urlencode(query)}"

    def code_in(self, answer: Mapping[str, str], server: AuthorizationServer) -> str:
        """Return the code of an answer with the right state.

        Raises:
            OAuthError: the person or the server refused, or another server answered (RFC 9207).
        """
        issuer = server.metadata.issuer
        named = answer.get("iss")
        is_missing = named is None and server.metadata.authorization_response_iss_parameter_supported
        if is_missing or named not in (None, issuer):
            raise OAuthError(f"The answer to the sign-in is not one of {issuer}: it names the issuer '{named}'.")
        if "error" in answer:
            raise refusal(issuer, answer["error"], answer.get("error_description"))
        if not answer.get("code"):
            raise OAuthError(f"{issuer} answered without a code.")
        return answer["code"]


async def sign_in(
    server: AuthorizationServer, offer: Offer, *, opens: bool, seconds: float = WAIT_SECONDS
) -> tuple[dict[str, Any], str]:
    """Have the person sign in; return the answer of the token endpoint, and the nonce of its ID token.

    Raises:
        OAuthError: the sign-in is refused, or takes too long.
        UnreachableError: the authorization server does not answer.
    """
    state = secrets.token_urlsafe(32)
    async with _listening(state) as (port, answer):
        request = BrowserRequest(
            f"http://{LOOPBACK}:{port}{_PATH}", state, *(secrets.token_urlsafe(32) for _ in range(2))
        )
        _show(request.url(server, offer), opens=opens)
        try:
            code = request.code_in(await asyncio.wait_for(answer, seconds), server)
        except TimeoutError:
            why = f"Nobody signed in within {seconds:g} s"
            raise OAuthError(f"{why}. Start again; with --device another machine's browser does.") from None
        form = {"code": code, "redirect_uri": request.redirect_uri, "code_verifier": request.verifier}
        return await server.token("authorization_code", offer, **form), request.nonce


def _show(url: str, *, opens: bool) -> None:
    begins = "A browser opens. If it does not, open" if opens else "To sign in, open"
    problem(f"{begins} this page on this machine:\n\n  {url}\n")
    if opens:
        begin(lambda: webbrowser.open(url), name="browser")  # some programs end only with their window


@asynccontextmanager
async def _listening(state: str) -> AsyncIterator[tuple[int, asyncio.Future[dict[str, str]]]]:
    """Listen on any port of this machine; yields it, and a future for the parameters of the redirect with `state`."""
    answer: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()
    tasks: set[asyncio.Task[Any]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or len(tasks) >= _MOST_CONNECTIONS:
            writer.close()
            return
        tasks.add(task)
        try:
            with suppress(OSError, TimeoutError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                async with asyncio.timeout(_HEAD_SECONDS):
                    head = await reader.readuntil(b"\r\n\r\n")
                    status, text = _answer_to(head, state, answer)
                    writer.write(_response(status, text))
                    await writer.drain()
        finally:
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(serve, LOOPBACK, 0, limit=_LARGEST_HEAD)
    try:
        yield server.sockets[0].getsockname()[1], answer
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _answer_to(head: bytes, state: str, answer: asyncio.Future[dict[str, str]]) -> tuple[HTTPStatus, str]:
    """Return status and text for a request; the first redirect with the right state settles `answer`."""
    method, _, rest = head.partition(b"\r\n")[0].decode("ascii").partition(" ")
    target = urlsplit(rest.partition(" ")[0])
    if target.path != _PATH:
        return HTTPStatus.NOT_FOUND, "There is nothing here."
    if method != "GET":
        return HTTPStatus.METHOD_NOT_ALLOWED, "This page takes GET only."
    parameters = parse_qsl(target.query, keep_blank_values=True, max_num_fields=20)
    given = dict(parameters)
    if len(given) != len(parameters) or not hmac.compare_digest(given.get("state", "").encode(), state.encode()):
        return HTTPStatus.BAD_REQUEST, "This is not the answer to the sign-in that waits in the terminal."
    if answer.done():
        return HTTPStatus.GONE, "The answer to this sign-in has arrived before."
    answer.set_result(given)
    return HTTPStatus.OK, _DONE


def _response(status: HTTPStatus, text: str) -> bytes:
    body = text.encode()
    return f"HTTP/1.1 {status.value} {status.phrase}\r\n{_HEADERS}Content-Length: {len(body)}\r\n\r\n".encode() + body
