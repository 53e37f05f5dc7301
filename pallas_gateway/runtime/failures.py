"""Failures of fast-agent or a model as users see them: the kind of failure and one sentence.

The sentence has no URLs and tracebacks, which are in the log, and no secrets, which servers and models often repeat.
"""

from __future__ import annotations

import re
from traceback import walk_tb

import httpx2
from fast_agent.core.exceptions import (
    FastAgentError,
    ModelConfigError,
    ProviderKeyError,
    ServerConfigError,
    format_fast_agent_error,
    walk_exception_chain,
)
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from pallas_gateway.calls.provider_failures import COULD_NOT_ANSWER, provider_words, why_failed
from pallas_gateway.errors import CallFailedError, GatewayError
from pallas_gateway.telemetry.redaction import shortened

_LONGEST = 300
_UNREADABLE = "Failed to parse JSON response"
"""Begins the MCP SDK's message, which has a class of its own and a whole report of pydantic's."""
_INVALID_JSON = re.compile(r"Invalid JSON: ([^\[\n]{1,100}) \[")
_NO_MODEL = "No model configured"
"""fast-agent's message. Its hint names options and a file that projects of the gateway do not have."""


def failure_of(error: BaseException) -> tuple[str, str]:
    """The kind of failure (`llm_error`, `llm_timeout`, `runtime_error`) and a sentence for the user."""
    if (own := next((e for e in walk_exception_chain(error) if isinstance(e, CallFailedError)), None)) is not None:
        return own.reason, f"{COULD_NOT_ANSWER}: {own}"  # raised only in an LLM turn
    if _came_from_the_model(error):
        return "llm_error", f"{COULD_NOT_ANSWER}: {why_failed(error) or one_line(error)}"
    return "runtime_error", f"The agent failed: {one_line(error)}"


def one_line(error: BaseException) -> str:
    """The most specific line of an exception: fast-agent's exceptions hold causes, groups and whole tracebacks."""
    chain = list(walk_exception_chain(error))
    if (own := next((e for e in chain if isinstance(e, GatewayError)), None)) is not None:
        return str(own)  # already a sentence
    if isinstance(error, TimeoutError) and str(error):
        return str(error)
    if (words := provider_words(error)) is not None:
        return shortened(" ".join(words.split()), _LONGEST)
    telling = [e for e in chain if not isinstance(e, (FastAgentError, BaseExceptionGroup))]
    # The HTTP library's error only has the status and the URL; the provider's exception around it has the reason.
    reasons = [e for e in telling if not isinstance(e, httpx2.HTTPStatusError)] or telling
    # `raise … from` hides the context. A server of the initialize era has refused `server/discover` before.
    causes = [e.__cause__ for e in chain]
    hiding = (e for e in reasons if e.__suppress_context__ or isinstance(e.__context__, MCPError))
    before = [e.__context__ for e in hiding if e.__context__ not in causes]
    reasons = [e for e in reasons if e not in before]
    deepest = reasons[-1] if reasons else error
    return _line_of(deepest)


def _line_of(error: BaseException) -> str:
    if type(error).__name__ == "LocalProtocolError":  # of h11 and its wrappers; their text shows the header
        return "a configured header holds a character that HTTP does not allow"
    if isinstance(error, ValidationError):
        return what_is_invalid(error)
    if isinstance(error, MCPError) and error.message.startswith(_UNREADABLE):
        invalid = _INVALID_JSON.search(error.message)
        return f"its answer is no JSON-RPC message{f' ({invalid[1]})' if invalid else ''}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return shortened(lines[0] if lines else type(error).__name__, _LONGEST)


def _came_from_the_model(error: BaseException) -> bool:
    """True if fast-agent's provider code raised the error; it returns most failures of a model as messages."""
    frames = (frame for frame, _ in walk_tb(error.__traceback__))
    return any(frame.f_globals.get("__name__", "").startswith("fast_agent.llm.") for frame in frames)


def is_about_the_model(error: BaseException) -> bool:
    """Return True if an agent did not start because of its model or its provider's requirements."""
    is_named = any(isinstance(e, (ModelConfigError, ProviderKeyError)) for e in walk_exception_chain(error))
    return is_named or _came_from_the_model(error)


def what_is_invalid(error: ValidationError) -> str:
    """The places and rules of a failed validation, without values, which may be secrets."""
    # Not `key: sentence`, which for a key like `client_secret` would look like the secret itself.
    wrong = (
        f"in {'.'.join(map(str, one['loc'])) or 'the whole'}, {one['msg'].removeprefix('Value error, ')}"
        for one in error.errors(include_input=False)
    )
    return shortened(f"{error.title}: {'; '.join(wrong)}", _LONGEST)


def start_reason(error: BaseException) -> str:
    """The reason of a failed start as one line, without the wrong values, which may be secrets."""
    for cause in walk_exception_chain(error):
        if isinstance(cause, ValidationError):
            return what_is_invalid(cause)
        if isinstance(cause, ModelConfigError) and cause.message == _NO_MODEL:
            return "no model is configured; set `default_model` in fastagent.config.yaml, or `model=` on the agent"
    text = format_fast_agent_error(error) if isinstance(error, FastAgentError) else f"{type(error).__name__}: {error}"
    if isinstance(error, ServerConfigError):
        text += "; define each under `mcp.servers` in fastagent.config.yaml"
    return shortened(" ".join(text.split()), _LONGEST)
