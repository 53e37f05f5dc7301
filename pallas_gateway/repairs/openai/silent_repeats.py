"""Libraries repeat requests without a log.

Symptom: OpenAI's and Anthropic's libraries repeat a failed request up to two times, logged at DEBUG only.

Repair: each repeat is logged ("LLM request repeated") and reported as progress.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from pallas_gateway.calls.current import say_repeated
from pallas_gateway.changes.change import REPAIR, Change, Loaded, Name

_TAKES = ("self", "retries_taken", "max_retries", "options", "response")
CHANGE = Change(
    "silent-repeats",
    REPAIR,
    ("openai", "anthropic"),
    seen_in="3.24.0",
    when=Loaded("fast_agent.llm.provider"),
    replaces=(
        Name("openai._base_client:AsyncAPIClient._sleep_for_retry", _TAKES),
        Name("anthropic._base_client:AsyncAPIClient._sleep_for_retry", _TAKES),
    ),
    gone_when="the libraries log repeats as warnings, or have a hook for them",
)


def changed(original: Any, holder: Any) -> Any:
    """Report a repeat before the pause that precedes it."""
    del holder

    @wraps(original)
    async def sleep_for_retry(self: Any, *, retries_taken: int, response: Any, **more: Any) -> None:
        say_repeated(f"status {response.status_code}" if response is not None else "no connection", retries_taken + 1)
        await original(self, retries_taken=retries_taken, response=response, **more)

    return sleep_for_retry
