"""Azure's login blocks the event loop, and is made for every turn.

Symptom: Azure with `use_default_azure_credential` logs in for each call, on the event loop.

Repair: the credential of the process (`cloud_logins.py`) is used; a thread fetches its token, once for all turns.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from pallas_gateway.changes.change import REPAIR, Change, Loaded, Name

_MODULE = "fast_agent.llm.provider.openai.llm_azure"
CHANGE = Change(
    "azure-login",
    REPAIR,
    ("fast-agent-mcp",),
    seen_in="0.10.48",
    when=Loaded(_MODULE),
    replaces=(
        Name(f"{_MODULE}:DefaultAzureCredential", by="of_the_process"),
        Name(f"{_MODULE}:AzureOpenAILLM.__init__", takes=("self",), by="awaiting"),
    ),
    gone_when="fast-agent keeps credentials, and awaits their tokens",
)


def of_the_process(original: Callable[[], Any] | None, holder: Any) -> Callable[[], Any] | None:
    """Return the credential of the process; None without Azure's package, which fast-agent reports."""
    del holder
    from pallas_gateway.cloud_logins import azure_identity  # noqa: PLC0415  not before it is used

    return partial(azure_identity, original) if original is not None else None


def awaiting(original: Callable[..., None], holder: Any) -> Callable[..., None]:
    """Have OpenAI's client await tokens; fast-agent's own token provider blocks."""
    del holder

    @wraps(original)
    def initialize(self: Any, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **options)
        if self.use_default_cred:
            self.get_azure_token = self.credential.token

    return initialize
