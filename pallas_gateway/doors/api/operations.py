"""Operations: a method of a path of `/api/v1`, with its models. Router and OpenAPI document are made of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from pallas_gateway.doors.api.models import Query

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic import BaseModel

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
