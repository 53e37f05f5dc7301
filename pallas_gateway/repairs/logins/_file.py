"""The file of fast-agent's logins. The gateway reads tokens from it, and never logs in."""

from __future__ import annotations

import os

from fast_agent.auth.credentials import configured_auth_path, load_oauth_credential
from fast_agent.core.exceptions import ProviderKeyError
from fast_agent.llm.provider_key_manager import ProviderKeyManager
from fast_agent.llm.provider_types import Provider

from pallas_gateway.telemetry import redaction

FILE = "FAST_AGENT_AUTH_FILE"
_PROVIDERS = {"codex": Provider.CODEX_RESPONSES, "xai": Provider.XAI, "copilot": Provider.COPILOT}


def token(login: str, *, force_refresh: bool = False) -> str:
    """The token of a login in the file.

    Raises:
        ProviderKeyError: there is no token.
    """
    del force_refresh  # the token is renewed before the turn
    if (found := stored(login)) is None:
        name = _PROVIDERS[login].config_name
        raise missing(login, "API key", f"`{name}.api_key` or {ProviderKeyManager.get_env_key_name(name)}")
    return found


def stored(login: str) -> str | None:
    """The token of a login in the file, if it has one.

    Raises:
        ProviderKeyError: the file cannot be read.
    """
    if configured_auth_path() is None:
        return None
    try:
        found, is_readable = load_oauth_credential(login), True
    except (OSError, ValueError):  # the message of pydantic's error does not name the file
        found, is_readable = None, False
    if not is_readable:
        why = f"{_PROVIDERS[login].display_name} cannot read its login in the file of {FILE}"
        raise ProviderKeyError(why, f"Delete the file, and {how_to_log_in(login)}.")
    if found is None:
        return None
    access_token: str = found.credential.access_token
    redaction.configured.add([access_token])
    return access_token


def missing(login: str, kind: str, settings: str) -> ProviderKeyError:
    """The error of a provider that has neither a key in its settings nor a login."""
    where = f", and the file of {FILE} holds none" if os.environ.get(FILE) else ""
    why = f"{_PROVIDERS[login].display_name} has no {kind} and no login{where}"
    return ProviderKeyError(why, f"Set {settings}, or {how_to_log_in(login)}.")


def how_to_log_in(login: str) -> str:
    """Say how to write a login into the file."""
    return f"log in with `{FILE}=PATH fast-agent auth provider login {login}` and start the gateway with that variable"
