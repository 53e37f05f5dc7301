"""A token endpoint of RFC 8693 that exchanges callers' tokens."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from tests.support.asgi import AsgiApp
from tests.support.waiting import Gate


@dataclass
class AuthorizationServer:
    """A token endpoint that issues `<resource's port>-<n>-for-<subject>`, and may be made to refuse, or to hang."""

    url: str = ""
    expires_in: int = 300
    refuses: bool = False
    gate: Gate | None = None
    asked: list[Mapping[str, Any]] = field(default_factory=list)
    issued: list[str] = field(default_factory=list)

    async def exchange(self, request: Request) -> JSONResponse:
        form = await request.form()
        self.asked.append({**form, "authorization": request.headers.get("authorization")})
        if self.gate is not None:
            await self.gate.enter()
        if self.refuses:
            return JSONResponse({"error": "invalid_grant", "error_description": str(form)}, status_code=400)
        self.issued.append(f"{len(self.asked)}-for-{form['subject_token']}")
        answer = {"access_token": self.issued[-1], "token_type": "bearer", "expires_in": self.expires_in}
        return JSONResponse(answer)

    @property
    def app(self) -> AsgiApp:
        app: Any = Starlette(routes=[Route("/token", self.exchange, methods=["POST"])])
        return app  # type: ignore[no-any-return]  # Starlette types scopes more narrowly
