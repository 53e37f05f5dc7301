"""A small OAuth 2.1 authorization server that issues proper tokens, and `mint`s any other.

It approves everybody at once, up to what its `approve` allows. Sources: RFC 6749 as OAuth 2.1 narrows it, RFC 7591
(registration), RFC 7636 (PKCE, S256 only), RFC 8414 (metadata), RFC 8707 (`resource` becomes `aud`), RFC 9207 (`iss`).
"""

import base64
import hashlib
import itertools
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from joserfc.jwk import Key
from starlette.applications import Starlette
from starlette.datastructures import FormData, QueryParams
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from .asgi import AsgiApp
from .downstreams import HttpRequest, Recorder
from .listener import reserved_port, serve_app
from .tokens import ALGORITHMS, base64url, forge, keys_of
from .waiting import Gate

LIFE_SECONDS = 3600

type Approve = Callable[[frozenset[str]], frozenset[str]]


@dataclass(frozen=True)
class _Grant:
    """What somebody was allowed: behind a code (with its PKCE challenge and redirect) or a refresh token."""

    client_id: str
    scope: frozenset[str]
    resource: str | None
    redirect_uri: str = ""
    challenge: str = ""


class OAuthError(Exception):
    """A refusal with its error code (RFC 6749 5.2)."""

    def __init__(self, code: str, status: int = 400) -> None:
        super().__init__(code)
        self.code, self.status = code, status


class AuthorizationServer:
    """The server and what it was asked; `authorization_server` serves it.

    `approve` decides which of the scopes asked for are granted. `jwks_reply` replaces the key set by a response of the
    test's own; `jwks_gate` is where requests for it are held.
    """

    def __init__(self) -> None:
        self.issuer = ""
        self.recorder = Recorder(_app(self))
        self.keys = keys_of("server", 1)
        self.clients: dict[str, dict[str, Any]] = {}
        self.approve: Approve = lambda asked: asked
        self.subject = "alice"
        self.jwks_reply: Response | None = None
        self.jwks_gate: Gate | None = None
        self.codes: dict[str, _Grant] = {}
        self.refresh_tokens: dict[str, _Grant] = {}
        self._published = [self.keys]
        self._generations = itertools.count(2)
        self._port = 0
        self._running: AsyncExitStack | None = None

    @property
    def jwks_uri(self) -> str:
        return f"{self.issuer}/jwks"

    def requests(self, path: str) -> list[HttpRequest]:
        return [request for request in self.recorder.requests if request.path == path]

    @property
    def fetches(self) -> int:
        """How often the keys were asked for."""
        return len(self.requests("/jwks"))

    def jwks(self) -> dict[str, Any]:
        return {"keys": [key for generation in self._published for key in generation.published()]}

    def rotate(self, *, keep_old: bool = False) -> None:
        """Sign with new keys from now on, and publish them, with the old ones or in their place."""
        self.keys = keys_of("server", next(self._generations))
        self._published = [*(self._published if keep_old else ()), self.keys]

    def mint(
        self,
        *,
        key: Key | bytes | None = None,
        alg: str | None = None,
        header: Mapping[str, Any] | None = None,
        **claims: Any,
    ) -> str:
        """A token as it would be issued, but for what the test wants otherwise.

        Args:
            key: signs; by default the present RSA key; bytes are a shared secret. Its `kid` goes into the header.
            alg: how it signs; by default what is usual for the kind of key. `none` leaves the signature empty.
            header: replaces entries of the JOSE header without changing how it is signed; None removes one.
            claims: replace the usual claims; None removes one. There is no `aud` and no `scope` unless given.
        """
        key = key or self.keys.rsa
        alg = alg or ALGORITHMS[type(key)]
        now = int(time.time())
        usual = {"iss": self.issuer, "sub": self.subject, "iat": now, "exp": now + LIFE_SECONDS}
        named = {"alg": alg, "typ": "at+jwt", "kid": None if isinstance(key, bytes) else key.kid}
        return forge({**named, **(header or {})}, {**usual, **claims}, key, alg)

    async def up(self) -> None:
        if self._running is not None:
            raise AssertionError("already up")
        running = AsyncExitStack()
        await running.enter_async_context(serve_app(self.recorder, port=self._port))
        self._running = running

    async def down(self) -> None:
        """Cut every connection and stop listening: connecting is refused."""
        running, self._running = self._running, None
        if running is not None:
            await running.aclose()

    @asynccontextmanager
    async def serve(self) -> AsyncGenerator[None]:
        """Own one address until the block ends, up at first."""
        with reserved_port() as self._port:
            self.issuer = f"http://127.0.0.1:{self._port}"
            try:
                await self.up()
                yield
            finally:
                await self.down()

    async def answer_metadata(self, _: Request) -> Response:
        """Serve the metadata of RFC 8414."""
        methods = ["none", "client_secret_basic", "client_secret_post"]
        return JSONResponse(
            {
                "issuer": self.issuer,
                "authorization_endpoint": f"{self.issuer}/authorize",
                "token_endpoint": f"{self.issuer}/token",
                "registration_endpoint": f"{self.issuer}/register",
                "jwks_uri": self.jwks_uri,
                "response_types_supported": ["code"],
                "grant_types_supported": ["authorization_code", "refresh_token", "client_credentials"],
                "token_endpoint_auth_methods_supported": methods,
                "code_challenge_methods_supported": ["S256"],
                "authorization_response_iss_parameter_supported": True,
            }
        )

    async def answer_jwks(self, _: Request) -> Response:
        if self.jwks_gate is not None:
            await self.jwks_gate.enter("jwks")
        return self.jwks_reply or JSONResponse(self.jwks())

    async def answer_register(self, request: Request) -> Response:
        client = {"token_endpoint_auth_method": "client_secret_basic", **await request.json()}
        client["client_id"] = f"client-{len(self.clients) + 1}"
        if client["token_endpoint_auth_method"] != "none":
            client["client_secret"] = secrets.token_urlsafe(16)
        self.clients[client["client_id"]] = client
        return JSONResponse(client, status_code=201)

    async def answer_authorize(self, request: Request) -> Response:
        """Approve, and send the user's browser back with a code."""
        query = request.query_params
        client = self.clients.get(query.get("client_id", ""))
        redirect = query.get("redirect_uri", "")
        if client is None or redirect not in client.get("redirect_uris", ()):
            raise OAuthError("invalid_request")  # no redirect to an address nobody registered
        if query.get("response_type") != "code" or query.get("code_challenge_method") != "S256":
            raise OAuthError("invalid_request")
        code = secrets.token_urlsafe(16)
        self.codes[code] = _Grant(
            client["client_id"],
            self.approve(_words(query.get("scope", ""))),
            _resource(query),
            redirect,
            query["code_challenge"],
        )
        answer = {"code": code, "state": query.get("state", ""), "iss": self.issuer}
        return RedirectResponse(f"{redirect}?{urlencode(answer)}", status_code=302)

    async def answer_token(self, request: Request) -> Response:
        """Exchange a code, a refresh token or a client's own credentials for an access token."""
        form = await request.form()
        client_id = self._authenticated(request, form)
        exchanges = {
            "authorization_code": self._redeem_code,
            "refresh_token": self._redeem_refresh_token,
            "client_credentials": self._grant_to_client,
        }
        exchange = exchanges.get(str(form.get("grant_type")))
        if exchange is None:
            raise OAuthError("unsupported_grant_type")
        grant = exchange(client_id, form)
        if _resource(form) not in {None, grant.resource}:
            raise OAuthError("invalid_target")
        answer = self._issued(grant, subject=client_id if exchange == self._grant_to_client else self.subject)
        return JSONResponse(answer, headers={"Cache-Control": "no-store"})

    def _authenticated(self, request: Request, form: FormData) -> str:
        client_id, secret = form.get("client_id"), form.get("client_secret")
        scheme, _, basic = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "basic":
            client_id, _, secret = base64.b64decode(basic).decode().partition(":")
        client = self.clients.get(str(client_id))
        if client is None or client.get("client_secret") != secret:
            raise OAuthError("invalid_client", 401)
        return str(client_id)

    def _redeem_code(self, client_id: str, form: FormData) -> _Grant:
        grant = self.codes.pop(str(form.get("code")), None)  # it works once
        digest = hashlib.sha256(str(form.get("code_verifier")).encode()).digest()
        shown = (client_id, form.get("redirect_uri"), base64url(digest))
        if grant is None or (grant.client_id, grant.redirect_uri, grant.challenge) != shown:
            raise OAuthError("invalid_grant")
        return grant

    def _redeem_refresh_token(self, client_id: str, form: FormData) -> _Grant:
        grant = self.refresh_tokens.pop(str(form.get("refresh_token")), None)
        if grant is None or grant.client_id != client_id:
            raise OAuthError("invalid_grant")
        return grant

    def _grant_to_client(self, client_id: str, form: FormData) -> _Grant:
        if "client_secret" not in self.clients[client_id]:
            raise OAuthError("unauthorized_client")
        return _Grant(client_id, self.approve(_words(str(form.get("scope", "")))), _resource(form))

    def _issued(self, grant: _Grant, *, subject: str) -> dict[str, Any]:
        scope = " ".join(sorted(grant.scope))
        token = self.mint(sub=subject, aud=grant.resource, scope=scope, client_id=grant.client_id)
        answer: dict[str, Any] = {"access_token": token, "token_type": "Bearer", "expires_in": LIFE_SECONDS}
        if subject != grant.client_id:
            answer["refresh_token"] = secrets.token_urlsafe(16)
            self.refresh_tokens[answer["refresh_token"]] = grant
        return {**answer, "scope": scope}


@asynccontextmanager
async def authorization_server() -> AsyncGenerator[AuthorizationServer]:
    server = AuthorizationServer()
    async with server.serve():
        yield server


def _app(server: AuthorizationServer) -> AsgiApp:
    metadata = ("/.well-known/oauth-authorization-server", "/.well-known/openid-configuration")
    app: AsgiApp = Starlette(
        routes=[
            *(Route(path, server.answer_metadata) for path in metadata),
            Route("/jwks", server.answer_jwks),
            Route("/register", server.answer_register, methods=["POST"]),
            Route("/authorize", server.answer_authorize),
            Route("/token", server.answer_token, methods=["POST"]),
        ],
        exception_handlers={OAuthError: _refusal},
    )
    return app


async def _refusal(_: Request, error: Exception) -> Response:
    assert isinstance(error, OAuthError)
    return JSONResponse({"error": error.code}, status_code=error.status)


def _words(scope: str) -> frozenset[str]:
    return frozenset(scope.split())


def _resource(parameters: QueryParams | FormData) -> str | None:
    return str(parameters["resource"]) if "resource" in parameters else None
