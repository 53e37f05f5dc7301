"""The ASGI app of one path below `/api/v1`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from starlette.requests import Request

from pallas_gateway.errors import GatewayError
from pallas_gateway.identity.errors import TokenError
from pallas_gateway.web import refusals
from pallas_gateway.web.threads.errors import response_to

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.types import Receive, Scope, Send

    from pallas_gateway.hosting.gateway import Gateway


class Api(ABC):
    """Answers requests, also those that are refused."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            response = await self._answer(Request(scope, receive))
        except TokenError as error:
            response = refusals.of_token(self._gateway, error, scope)
        except refusals.RefusedError as error:
            response = error.response
        except GatewayError as error:
            response = self._failed(error)
        await response(scope, receive, send)

    def _failed(self, error: GatewayError) -> Response:
        return response_to(error)

    @abstractmethod
    async def _answer(self, request: Request) -> Response:
        """Return the response; raises what the app turns into one."""
