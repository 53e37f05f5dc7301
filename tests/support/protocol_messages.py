"""MCP messages against the protocol's own JSON Schema of their era: what the gateway sends, to clients and downstreams.

Fakes in one language accept what servers and clients in others refuse. Here pass all messages of the end-to-end tests:
`Recorder` and `stdio_program` take those to downstreams, `checked_answers` those to clients, of every gateway that is
served in this process, and `RawClient` those of gateways in other processes. What does not fit fails the test in which
it was sent, by a fixture of `tests/conftest.py`.
"""

import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, override

import jsonschema_rs

from pallas_gateway.doors.mcp.envelope import McpRequest
from tests.support.asgi import Message, Send

SCHEMAS = Path(__file__).parent / "protocol"
VERSIONS = frozenset(path.stem for path in SCHEMAS.glob("*.json"))
WITHOUT_HEADER = "2025-03-26"
"""The version of requests without the header, which it did not have yet."""
_HEADER = "mcp-protocol-version"
_META_VERSION = "io.modelcontextprotocol/protocolVersion"

type Json = dict[str, Any]


@dataclass(frozen=True)
class _Era:
    document: Json

    @property
    def definitions(self) -> Json:
        found: Json = self.document.get("$defs") or self.document["definitions"]
        return found

    @cache  # noqa: B019  four eras, for the whole run
    def by_method(self) -> dict[str, str]:
        """The name of the request or notification of each method."""
        methods = {
            definition.get("properties", {}).get("method", {}).get("const"): name
            for name, definition in self.definitions.items()
        }
        return {method: name for method, name in methods.items() if method is not None}

    @cache  # noqa: B019
    def validator(self, name: str) -> Any:
        place = "$defs" if "$defs" in self.document else "definitions"
        schema = {"$schema": self.document["$schema"], "$ref": f"#/{place}/{name}", place: self.definitions}
        return jsonschema_rs.validator_for(schema)

    def error_name(self) -> str:
        return "JSONRPCError" if "JSONRPCError" in self.definitions else "JSONRPCErrorResponse"

    @override
    def __hash__(self) -> int:
        return id(self.document)


@cache
def _era(version: str) -> _Era:
    return _Era(json.loads((SCHEMAS / f"{version}.json").read_text(encoding="utf-8")))


def misfits(message: Any, version: str, *, answered: str | None = None) -> list[str]:
    """Return what of a message does not fit the protocol; `answered` is the method of the request of a response."""
    if not isinstance(message, dict):
        return [f"no JSON object: {message!r:.200}"]
    era = _era(version)
    if "method" in message:
        name = era.by_method().get(message["method"])
        if name is None:
            return [f"{version} has no method {message['method']!r}"]
        return _errors(era, "JSONRPCRequest" if "id" in message else "JSONRPCNotification", message) + _errors(
            era, name, message
        )
    if "error" in message:
        known = message if message.get("id") is not None else {**message, "id": 0}
        return _errors(era, era.error_name(), known)  # JSON-RPC requires null where the id could not be read
    whole = "JSONRPCResultResponse" if "JSONRPCResultResponse" in era.definitions else "JSONRPCResponse"
    return _errors(era, whole, message) + _misfits_of_result(era, message, answered)


def _misfits_of_result(era: _Era, message: Json, answered: str | None) -> list[str]:
    if (message.get("result") or {}).get("resultType") == "task":  # an extension's, which has no schema
        answered = None
    request = era.by_method().get(answered or "", "").removesuffix("Request")
    if f"{request}ResultResponse" in era.definitions:
        return _errors(era, f"{request}ResultResponse", message)
    name = f"{request}Result" if f"{request}Result" in era.definitions else "EmptyResult"
    return _errors(era, name, message.get("result"))


def _errors(era: _Era, name: str, value: Any) -> list[str]:
    if era.validator(name).is_valid(value):
        return []
    errors = [
        f"{name}: {'.'.join(str(part) for part in error.instance_path)}: {error.message:.300}"
        for error in era.validator(name).iter_errors(value)
    ]
    return [f"{error} in {json.dumps(value)[:500]}" for error in errors]


class Misfits:
    """The messages of the present test that do not fit."""

    def __init__(self) -> None:
        self._found: list[str] = []
        self._unchecked: list[tuple[str, Callable[[], list[str]]]] = []
        self._folders: set[Path] = set()

    def note(self, where: str, misfits: list[str]) -> None:
        self._found += [f"{where}: {one}" for one in misfits]

    def check_at_the_end(self, where: str, check: Callable[[], list[str]]) -> None:
        """Keep a check that takes too long to be made within the test."""
        self._unchecked.append((where, check))

    def look_into(self, folder: Path) -> None:
        """Also check the messages that the processes of `stdio_program` note in `folder`."""
        self._folders.add(folder)

    def take(self) -> list[str]:
        """Return what was found, and forget it."""
        for folder in self._folders:
            self.note("to a program", [one for found in _of_program(folder) for one in found])
        late = dict.fromkeys((where, one) for where, check in self._unchecked for one in check())
        for where, one in late:
            self.note(where, [one])
        self._folders.clear()
        self._unchecked.clear()
        found, self._found = self._found, []
        return found


MISFITS = Misfits()


def to_server(body: bytes, headers: Mapping[str, str]) -> None:
    """Check the body of a request to an MCP server over HTTP."""
    try:
        message = json.loads(body)
    except ValueError:
        return  # no MCP at all
    if isinstance(message, dict) and message.get("jsonrpc") and (version := _version(message, headers)) in VERSIONS:
        MISFITS.note("to a downstream", misfits(message, version, answered=_any_of_server(message)))


def _version(message: Json, headers: Mapping[str, str]) -> str:
    params = message.get("params") if isinstance(message.get("params"), dict) else {}
    if message.get("method") == "initialize":
        return str((params or {}).get("protocolVersion"))
    in_meta = ((params or {}).get("_meta") or {}).get(_META_VERSION)
    return str(in_meta or headers.get(_HEADER, WITHOUT_HEADER))


def _any_of_server(message: Json) -> str | None:
    """The only request of a server that the gateway answers, beside pings and samplings."""
    result = message.get("result")
    return "elicitation/create" if isinstance(result, dict) and "action" in result else None


def _of_program(folder: Path) -> Iterator[list[str]]:
    path = folder / "messages"
    whole, _, _ = path.read_text().rpartition("\n") if path.exists() else ("", "", "")
    headers: dict[str, str] = {}
    for line in whole.splitlines():
        message = json.loads(line)
        version = _version(message, headers)
        if message.get("method") == "initialize":
            headers[_HEADER] = version
        if version in VERSIONS:
            yield misfits(message, version, answered=_any_of_server(message))


def from_server(message: Any, request: Any, headers: Mapping[str, str]) -> None:
    """Check one message of the answer to a client's request."""
    if isinstance(message, dict) and isinstance(message.get("error"), str):
        return  # a refusal of HTTP, not of MCP
    asked = request if isinstance(request, dict) else {}
    result = message.get("result") if isinstance(message, dict) else None
    version = _version(asked, headers)
    if asked.get("method") == "initialize" and isinstance(result, dict):
        version = str(result.get("protocolVersion"))
    if version in VERSIONS and isinstance(asked.get("method"), str):
        MISFITS.note("to a client", misfits(message, version, answered=asked["method"]))


def checked_answers(
    handle: Callable[[Any, McpRequest, Send], Awaitable[None]],
) -> Callable[[Any, McpRequest, Send], Awaitable[None]]:
    """Return `Transport.handle` of the gateway, whose answers are checked when they have been sent."""

    async def checked(self: Any, request: McpRequest, send: Send) -> None:
        sent = bytearray()
        kind = b""

        async def listen(message: Message) -> None:
            nonlocal kind
            if message["type"] == "http.response.start":
                kind = dict(message.get("headers", [])).get(b"content-type", b"")
            else:
                sent.extend(message.get("body", b""))
            await send(message)

        try:
            await handle(self, request, listen)
        finally:
            _check_body(bytes(sent), kind, request)

    return checked


def _check_body(sent: bytes, kind: bytes, request: McpRequest) -> None:
    try:
        asked = json.loads(request.body)
    except (ValueError, RecursionError):
        return
    headers = {name.lower(): value for name, value in request.http.headers.items()}
    lines = sent.decode(errors="replace").splitlines() if kind.startswith(b"text/event-stream") else []
    texts = [line[5:] for line in lines if line.startswith("data:") and line[5:].strip()]
    if kind.startswith(b"application/json"):
        texts = [sent.decode(errors="replace")]
    for text in texts:
        try:
            message = json.loads(text)
        except ValueError:
            continue  # cut off: the client has left
        from_server(message, asked, headers)
