"""Logins block the event loop, and may prompt.

Symptom: without a key, agents of `codexresponses` and `xai` open the system's keyring in each call, `codexresponses`
reads `~/.codex/auth.json`, and a synchronous request of up to 30 s renews an expired token.

Repair: the token is read from the file that `FAST_AGENT_AUTH_FILE` names, and renewed in a thread; without one the
agent fails at its start.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from pallas_gateway.changes.change import REPAIR, Change, Loaded, Name
from pallas_gateway.errors import CallFailedError

_OPENAI = "fast_agent.llm.provider.openai"
_CODEX, _XAI = f"{_OPENAI}.codex_responses:CodexResponsesLLM", f"{_OPENAI}.xai_responses:XAIResponsesLLM"
_PREPARE = ("self", "model", "transport")
CHANGE = Change(
    "oauth-logins",
    REPAIR,
    ("fast-agent-mcp",),
    seen_in="0.10.48",
    when=Loaded(_OPENAI),
    replaces=(
        Name(f"{_OPENAI}.codex_oauth:get_codex_access_token", takes=("force_refresh",), by="from_the_file"),
        Name(f"{_OPENAI}.xai_oauth:get_xai_access_token", takes=("force_refresh",), by="from_the_file"),
        Name(f"{_CODEX}._prepare_responses_client", takes=_PREPARE, by="renewing"),
        Name(f"{_XAI}._prepare_responses_client", takes=_PREPARE, by="renewing"),
        Name(f"{_CODEX}._create_websocket_connection", takes=("self",), by="without_renewal"),
        Name(f"{_XAI}._create_websocket_connection", takes=("self",), by="without_renewal"),
    ),
    relies_on=(
        Name("fast_agent.auth.credentials:configured_auth_path"),
        Name("fast_agent.auth.credentials:load_oauth_credential", takes=("provider",)),
        Name("fast_agent.utils.async_utils:run_in_daemon_thread", takes=("func", "name")),
    ),
    gone_when="fast-agent reads and renews these tokens asynchronously, and has a setting against keyring and foreign "
    "files",
)
_LOGINS = {
    f"{_OPENAI}.codex_oauth": "codex",
    f"{_OPENAI}.xai_oauth": "xai",
    "CodexResponsesLLM": "codex",
    "XAIResponsesLLM": "xai",
}
"""By module or class, the name of the login."""
_renew: dict[str, Callable[[], str | None]] = {}
"""By login, fast-agent's function."""


def from_the_file(original: Callable[[], str | None], holder: Any) -> Callable[..., str]:
    """Read the token from the file alone."""
    from pallas_gateway.repairs.logins._file import token  # noqa: PLC0415  imports fast-agent

    login = _LOGINS[holder.__name__]
    _renew[login] = original
    return partial(token, login)


def renewing(original: Callable[..., Any], holder: Any) -> Callable[..., Any]:
    """Renew the token in a thread before a turn."""
    from fast_agent.utils.async_utils import run_in_daemon_thread  # noqa: PLC0415  not before it is used

    from pallas_gateway.repairs.logins._file import FILE, how_to_log_in  # noqa: PLC0415  imports fast-agent

    login = _LOGINS[holder.__name__]

    @wraps(original)
    async def prepare_client(self: Any, *arguments: Any) -> None:
        if _uses_login(self):
            try:
                await run_in_daemon_thread(_renew[login], name=f"renew the login of {login}")
            except Exception as error:
                why = f"its login in the file of {FILE} cannot be renewed; {how_to_log_in(login)}"
                raise CallFailedError(why, reason="llm_error") from error
        await original(self, *arguments)

    return prepare_client


def without_renewal(original: Any, holder: Any) -> Any:
    """Return the method of the class of all providers with this API: their own renews on the event loop."""
    del original
    base: Any = next(each for each in holder.__mro__ if each.__name__ == "ResponsesLLM")
    return base._create_websocket_connection


def _uses_login(llm: Any) -> bool:
    from fast_agent.llm.provider_key_manager import ProviderKeyManager  # noqa: PLC0415  not before it is used

    uses: Callable[[], bool] | None = getattr(llm, "_uses_oauth_credential", None)  # xAI: some models require it
    if uses is not None:
        return uses()
    name, config = llm.provider.config_name, llm.context.config
    has_key = ProviderKeyManager.get_config_file_key(name, config) or ProviderKeyManager.get_env_var(name)
    return llm._init_api_key is None and not has_key
