"""A subject of `/api/v1`: its operations, their routes, and what refused requests are answered with."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, override

from starlette.requests import Request
from starlette.routing import Match, Route

from pallas_gateway.doors.api import models, requests
from pallas_gateway.doors.api.errors import not_allowed, response_to
from pallas_gateway.doors.api.models import Query
from pallas_gateway.doors.http import refusals
from pallas_gateway.errors import GatewayError, TokenError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from pydantic import BaseModel
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

    from pallas_gateway.core.feature import Feature
    from pallas_gateway.core.gateway import Gateway

    type Endpoint = Callable[[Request], Awaitable[ASGIApp]]


_MARK = "__operation__"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A method of a path.

    Attributes:
        method: in capitals; `GET` stands for `HEAD`, too.
        path: as `starlette.routing.Route` takes it.
        id: the `operationId` of the document, by which generated clients name it.
        summary: a sentence.
        requires: who may use it; empty for every caller that `gateway.auth` lets in.
        query: its parameters, which the endpoint gets after the values of the path; None ignores all.
        body: the model of its body; None has none, `Any` is any object.
        body_required: False if an empty body is as good.
        patches: the body is a JSON Merge Patch (RFC 7396), which has a media type of its own.
        answer: the type of its answer; None has none, `Any` is any object.
        status: of its answer.
        says: what the answer is.
        dry_run_says: describes the answer 200 to a `dry_run`, if `status` is another one.
        events: the type of the events that are sent to clients that prefer them to JSON.
        conditional: the request has `If-Match`.
        headers: of the answer.
        errors: statuses of refusals besides those of every operation.
        endpoint: the name of the method of the `Api`.
    """

    method: str
    path: str
    id: str
    summary: str
    requires: str = ""
    query: type[Query] | None = Query
    body: type[BaseModel] | Any = None
    body_required: bool = True
    patches: bool = False
    answer: Any = None
    status: int = HTTPStatus.OK
    says: str = "The answer."
    dry_run_says: str = ""
    events: Any = None
    conditional: bool = False
    headers: tuple[str, ...] = ()
    errors: tuple[int, ...] = ()
    endpoint: str = ""


def operation[Function: Callable[..., Any]](
    method: str, path: str, id_: str, summary: str, **described: Any
) -> Callable[[Function], Function]:
    """Make a method of an `Api` the endpoint of an operation, with the attributes of `Operation`."""

    def mark(function: Function) -> Function:
        of_route = partial(Operation, method=method, path=path, endpoint=function.__name__)
        setattr(function, _MARK, of_route(id=id_, summary=summary, **described))
        return function

    return mark


def operations_of(api: type) -> list[Operation]:
    """Return the operations of an `Api`, in the order of its methods."""
    return [found for one in vars(api).values() if (found := getattr(one, _MARK, None)) is not None]


def template(path: str) -> str:
    """Return a path as the document has it: `{name:path}` is `{name}`."""
    return re.sub(r"\{(\w+):\w+\}", r"{\1}", path)


class Api:
    """Base of the subjects, such as threads, whose endpoints are marked by `operation`."""

    def __init__(self, gateway: Gateway, feature: Feature | None = None) -> None:
        del feature
        self._gateway = gateway

    def routes(self) -> list[Route]:
        """Return a route for each path."""
        by_path: dict[str, dict[str, Operation]] = {}
        for one in operations_of(type(self)):
            by_path.setdefault(one.path, {})[one.method] = one
        return [_Route(path, _Endpoints(self, methods)) for path, methods in by_path.items()]

    async def called(self, operation: Operation, request: Request) -> ASGIApp:
        """Call the endpoint of an operation with the request, the values in its path, and its query."""
        given = [*request.path_params.values()]
        if operation.query is not None:
            asked = models.query(operation.query, request)
            given += [asked] if operation.query.model_fields else []
        response: ASGIApp = await getattr(self, operation.endpoint)(request, *given)
        return response

    async def read(self, request: Request, *types: str, most: int = sys.maxsize) -> bytes:
        """Return the body of a request of at most `most` bytes; see `requests.read`."""
        largest = self._gateway.configuration.deployment.gateway.max_body_bytes
        return await requests.read(request, min(most, largest), *types)

    async def body[Body: BaseModel](self, request: Request, model: type[Body]) -> Body:
        """Return the body of a request as a model; raises as `read` and `models.parsed`."""
        return models.parsed(model, requests.json_object(await self.read(request)))

    def failed(self, error: GatewayError) -> Response:
        """Return the response for an error of an endpoint."""
        return response_to(error)

    async def respond(self, endpoint: Endpoint, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to a request by an endpoint, also if it refuses the request."""
        try:
            response = await endpoint(Request(scope, receive))
            await response(scope, receive, send)
        except TokenError as error:
            await refusals.of_token(self._gateway, error, scope)(scope, receive, send)
        except refusals.RefusedError as error:
            await error.response(scope, receive, send)
        except GatewayError as error:
            await self.failed(error)(scope, receive, send)


class _Route(Route):
    """A route of whole paths: Starlette's also match before a newline at the end."""

    @override
    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, child = (Match.NONE, {}) if scope["path"].endswith("\n") else super().matches(scope)
        # A route that has the method comes first: `POST /agents/try` tries, `GET /agents/try` reads an agent.
        has_method = isinstance(self.endpoint, _Endpoints) and self.endpoint.find(scope["method"]) is not None
        return (match if has_method or match is Match.NONE else Match.PARTIAL), child


class _Endpoints:
    """The ASGI app of one path."""

    def __init__(self, api: Api, methods: Mapping[str, Operation]) -> None:
        self._api = api
        self._methods = methods

    def find(self, method: str) -> Operation | None:
        return self._methods.get("GET" if method == "HEAD" else method)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        operation = self.find(scope["method"])
        if operation is None:
            await not_allowed(self._methods)(scope, receive, send)
        else:
            await self._api.respond(partial(self._api.called, operation), scope, receive, send)
