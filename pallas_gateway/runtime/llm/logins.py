"""Providers whose tokens come from a login: Codex, xAI and GitHub Copilot.

fast-agent reads such a token from the keyring, where the system may prompt, and from the files of Codex's command line,
and renews it on the event loop. Here it is read only from the file that `FAST_AGENT_AUTH_FILE` names, and renewed in a
thread. The gateway never logs in.
"""

from __future__ import annotations

import os
import sys
from functools import partial, wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fast_agent.core.exceptions import ProviderKeyError
from fast_agent.llm.provider_key_manager import ProviderKeyManager
from fast_agent.llm.provider_types import Provider

from pallas_gateway.errors import CallFailedError
from pallas_gateway.runtime import fast_paths
from pallas_gateway.runtime.compat.requirements import check_names
from pallas_gateway.runtime.llm.client_cache import aio_client, kept
from pallas_gateway.telemetry import redaction

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pallas_gateway.runtime.compat.requirements import ReliedOn

FILE = "FAST_AGENT_AUTH_FILE"
_OPENAI = "fast_agent.llm.provider.openai"
_COPILOTS_VARIABLE = "COPILOT_GITHUB_TOKEN"
# The name of the login, and the function that returns its token.
_LOGINS: Mapping[str, tuple[str, str, str]] = {
    "CodexResponsesLLM": ("codex", f"{_OPENAI}.codex_oauth", "get_codex_access_token"),
    "XAIResponsesLLM": ("xai", f"{_OPENAI}.xai_oauth", "get_xai_access_token"),
}
_PROVIDERS: Mapping[str, Provider] = {
    "codex": Provider.CODEX_RESPONSES,
    "xai": Provider.XAI,
    "copilot": Provider.COPILOT,
}
_CLIENTS: Mapping[str, str] = {
    "CopilotResponsesLLM": "_responses_client",
    "CopilotMessagesLLM": "_initialize_anthropic_client",
}
_COPILOTS_REPEATS = 2
_STORE: ReliedOn = (
    ("fast_agent.auth.credentials", "configured_auth_path", ()),
    ("fast_agent.auth.credentials", "load_oauth_credential", ("provider",)),
    ("fast_agent.utils.async_utils", "run_in_daemon_thread", ("func", "name")),
)


def prepare(llm_class: type[Any]) -> None:
    """Repair fast-agent's class for one of these providers; safe to call again."""
    if "logs_in" in vars(llm_class):
        return
    if (login := _LOGINS.get(llm_class.__name__)) is not None:
        check_names((*_STORE, (llm_class, "_prepare_responses_client", ("self", "model", "transport"))))
        check_names(((login[1], login[2], ("force_refresh",)),))
        _renew_in_threads(llm_class, *login)
    elif (client := _CLIENTS.get(llm_class.__name__)) is not None:
        check_names((*_STORE, (llm_class, client, ("self",)), (llm_class, "validate_provider_credentials", ("self",))))
        _require_copilots_token(llm_class)
        _repeat(llm_class, client)
        if llm_class.__name__ == "CopilotMessagesLLM":
            _keep_sockets(sys.modules[llm_class.__module__])
    else:
        return
    llm_class.logs_in = True


def _renew_in_threads(llm_class: Any, login: str, module_name: str, function: str) -> None:
    from fast_agent.utils.async_utils import run_in_daemon_thread  # noqa: PLC0415  needed with these providers only

    module = import_module(module_name)
    renew: Callable[[], str | None] = getattr(module, function)
    original = llm_class._prepare_responses_client

    @wraps(original)
    async def prepare_client(self: Any, *arguments: Any) -> None:
        if _uses_login(self):
            try:
                await run_in_daemon_thread(renew, name=f"renew the login of {login}")
            except Exception as error:
                why = f"its login in the file of {FILE} cannot be renewed; {_how_to_log_in(login)}"
                raise CallFailedError(why, reason="llm_error") from error
        await original(self, *arguments)

    llm_class._prepare_responses_client = prepare_client
    setattr(module, function, partial(_token, login))
    base = next(each for each in llm_class.__mro__ if each.__name__ == "ResponsesLLM")
    llm_class._create_websocket_connection = base._create_websocket_connection  # its own renews on the event loop


def _uses_login(llm: Any) -> bool:
    uses: Callable[[], bool] | None = getattr(llm, "_uses_oauth_credential", None)  # xAI: some models require it
    if uses is not None:
        return uses()
    name, config = llm.provider.config_name, llm.context.config
    has_key = ProviderKeyManager.get_config_file_key(name, config) or ProviderKeyManager.get_env_var(name)
    return llm._init_api_key is None and not has_key


def _token(login: str, *, force_refresh: bool = False) -> str:
    """The token of a login in the file.

    Raises:
        ProviderKeyError: there is no token.
    """
    del force_refresh  # the token is renewed before the turn
    if (token := _stored(login)) is None:
        name = _PROVIDERS[login].config_name
        key = f"`{name}.api_key` or {ProviderKeyManager.get_env_key_name(name)}"
        raise _missing(login, "API key", key)
    return token


def _stored(login: str) -> str | None:
    from fast_agent.auth.credentials import configured_auth_path, load_oauth_credential  # noqa: PLC0415

    if configured_auth_path() is None:
        return None
    try:
        stored, is_readable = load_oauth_credential(login), True
    except (OSError, ValueError):  # the message of pydantic's error does not name the file
        stored, is_readable = None, False
    if not is_readable:
        why = f"{_PROVIDERS[login].display_name} cannot read its login in the file of {FILE}"
        raise ProviderKeyError(why, f"Delete the file, and {_how_to_log_in(login)}.")
    if stored is None:
        return None
    token = stored.credential.access_token
    redaction.configured.add([token])
    return token


def _missing(login: str, kind: str, settings: str) -> ProviderKeyError:
    where = f", and the file of {FILE} holds none" if os.environ.get(FILE) else ""
    why = f"{_PROVIDERS[login].display_name} has no {kind} and no login{where}"
    return ProviderKeyError(why, f"Set {settings}, or {_how_to_log_in(login)}.")


def _how_to_log_in(login: str) -> str:
    return f"log in with `{FILE}=PATH fast-agent auth provider login {login}` and start the gateway with that variable"


def _require_copilots_token(llm_class: Any) -> None:
    """Require a token of variable or file; otherwise fast-agent would look into the keyring in a call."""

    def validate_provider_credentials(self: Any) -> None:
        del self
        if not os.environ.get(_COPILOTS_VARIABLE) and _stored("copilot") is None:
            raise _missing("copilot", "token", _COPILOTS_VARIABLE)

    llm_class.validate_provider_credentials = validate_provider_credentials


def _repeat(llm_class: Any, name: str) -> None:
    """Repeat failed requests, which fast-agent switches off for this provider."""
    original = getattr(llm_class, name)

    @wraps(original)
    def client(self: Any) -> Any:
        made = original(self)
        made.max_retries = _COPILOTS_REPEATS
        return made

    setattr(llm_class, name, client)


def _keep_sockets(module: Any) -> None:
    """Keep the HTTP client of Claude; fast-agent makes one for every turn, and closes none."""
    check_names(((module, "DefaultAsyncHttpxClient", ()),))
    original = module.DefaultAsyncHttpxClient

    def http_client(**settings: Any) -> Any:
        if not fast_paths.KEPT_ANTHROPIC_CLIENTS.is_on:
            return original(**settings)
        return kept({"provider": "copilot", **settings}, lambda: _Kept(aio_client(**settings))).http

    module.DefaultAsyncHttpxClient = http_client


class _Kept:
    """An HTTP client that is closed with the clients of the other providers."""

    def __init__(self, http: Any) -> None:
        self.http = http

    async def close(self) -> None:
        """Close its sockets."""
        await self.http.aclose()
