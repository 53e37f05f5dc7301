"""What belongs to a call is in one object, so a call that another one makes in its context takes over nothing of it."""

import asyncio
import re
from dataclasses import fields, replace
from pathlib import Path

import pallas_gateway
from pallas_gateway.calls.assistant_stream import PeerCall
from pallas_gateway.runtime.scope import CallScope, current_scope, entered

PACKAGE = Path(pallas_gateway.__file__).parent


def test_context_variables_of_the_product_are_those_of_a_call_its_log_ids_and_a_listing() -> None:
    """Changes of libraries have some of their own."""
    sources = {path.relative_to(PACKAGE).as_posix(): path.read_text("utf-8") for path in PACKAGE.rglob("*.py")}
    changes = ("repairs/", "fast_paths/")
    product = {name: source for name, source in sources.items() if not name.startswith(changes)}
    found = [name for name, source in product.items() for _ in re.findall(r"ContextVar\(", source)]
    expected = [
        "calls/current.py",
        "runtime/downstreams/listings/reading.py",
        "runtime/scope.py",
        "telemetry/current_call.py",
    ]
    assert sorted(found) == expected


def test_the_scope_of_a_call_is_small_and_of_the_product() -> None:
    """What only changes of libraries read is in `calls/current.py`."""
    assert len(fields(CallScope)) <= 10


async def test_a_task_adds_to_the_scope_of_its_call_for_itself_only() -> None:
    async def use_tool(server: str) -> CallScope:
        current_scope.set(replace(current_scope.get(), peer_call=PeerCall(server, "ask", server)))
        await asyncio.sleep(0)
        return current_scope.get()

    with entered(CallScope(served="harper")):
        one, other = await asyncio.gather(use_tool("one"), use_tool("other"))
        assert current_scope.get().peer_call is None
    assert [scope.peer_call.server for scope in (one, other) if scope.peer_call] == ["one", "other"]
    assert one.served == other.served == "harper"
    assert current_scope.get() == CallScope()
