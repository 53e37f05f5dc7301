"""What a piece of a streamed answer costs, counted in functions of Python: time would depend on the machine."""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.e2e.provider_matrix import ANTHROPIC, GEMINI, GENERIC, OPENAI, RESPONSES
from tests.e2e.providers import serving
from tests.support.calling import ask
from tests.support.scripted_llm import Say

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.providers import Provider

COUNTED = (
    "/openai/",
    "/anthropic/",
    "/google/genai/",
    "/fast_agent/",
    "/aiohttp/",
    "/httpx2/",
    "/pallas_gateway/runtime/",
)
"""The way of a piece from the socket to the observer; the scripted provider runs in this process, too."""
PIECES = 100
MOST = 1.3
"""Times the functions of the generic provider's model, which fast-agent does not know."""
MOST_OF_GEMINI = 4
"""Its events are not joined: each holds counts of tokens, and a sentence rather than a word."""


@contextmanager
def counting() -> Iterator[Counter[str]]:
    """Functions that were entered, by name."""
    monitoring, tool = sys.monitoring, 4
    entered: Counter[str] = Counter()

    def enter(code: Any, _: int) -> Any:
        if not any(part in code.co_filename for part in COUNTED):
            return monitoring.DISABLE
        entered[f"{code.co_qualname} {Path(code.co_filename).name}"] += 1
        return None

    monitoring.use_tool_id(tool, "pieces")
    monitoring.register_callback(tool, monitoring.events.PY_START, enter)
    monitoring.set_events(tool, monitoring.events.PY_START)
    try:
        yield entered
    finally:
        monitoring.set_events(tool, 0)
        monitoring.free_tool_id(tool)


async def functions_per_piece(path: Path, provider: Provider) -> float:
    entered: list[int] = []
    pieces = tuple(f"{number} " for number in range(PIECES))
    async with serving(path, provider, [Say(pieces[:1]), Say(pieces[:1]), Say(pieces)]) as served:
        await ask(served.url)  # which imports and remembers
        for count in (1, PIECES):
            with counting() as functions:
                assert (await ask(served.url)).text == "".join(pieces[:count])
            entered.append(functions.total())
    return (entered[1] - entered[0]) / (PIECES - 1)


async def test_a_piece_costs_about_as_much_with_every_provider(tmp_path: Path) -> None:
    providers = (GENERIC, OPENAI, RESPONSES, ANTHROPIC, GEMINI)
    costs = {one.name: await functions_per_piece(tmp_path / one.name, one) for one in providers}

    gemini, generic = costs.pop(GEMINI.name), costs.pop(GENERIC.name)
    assert gemini <= MOST_OF_GEMINI * generic
    assert all(cost <= MOST * generic for cost in costs.values()), (generic, costs)
