"""Copilot looks for its token in the keyring.

Symptom: without a token in its variable, each call opens the system's keyring, which may prompt.

Repair: `validate_provider_credentials` requires `COPILOT_GITHUB_TOKEN`, or the file that `FAST_AGENT_AUTH_FILE` names.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from pallas_gateway.changes.change import REPAIR, Change, Loaded, Name

_COPILOT = "fast_agent.llm.provider.copilot"
_VARIABLE = "COPILOT_GITHUB_TOKEN"
CHANGE = Change(
    "copilot-token",
    REPAIR,
    ("fast-agent-mcp",),
    seen_in="0.10.48",
    when=Loaded(_COPILOT),
    replaces=(
        Name(f"{_COPILOT}.responses:CopilotResponsesLLM.validate_provider_credentials", takes=("self",)),
        Name(f"{_COPILOT}.messages:CopilotMessagesLLM.validate_provider_credentials", takes=("self",)),
    ),
    relies_on=(
        Name("fast_agent.auth.credentials:configured_auth_path"),
        Name("fast_agent.auth.credentials:load_oauth_credential", takes=("provider",)),
    ),
    gone_when="fast-agent has a setting against the keyring",
)


def changed(original: Any, holder: Any) -> Callable[[Any], None]:
    """Require a token of the variable or the file."""
    del original, holder
    from pallas_gateway.repairs.logins._file import missing, stored  # noqa: PLC0415  imports fast-agent

    def validate_provider_credentials(self: Any) -> None:
        del self
        if not os.environ.get(_VARIABLE) and stored("copilot") is None:
            raise missing("copilot", "token", _VARIABLE)

    return validate_provider_credentials
