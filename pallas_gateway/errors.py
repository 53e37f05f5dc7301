"""The gateway's exceptions, divided by what can be done about them.

Every `GatewayError` carries a `reason`: one short snake_case word that is the log field, the label of the metrics
that have one, and what tests assert. The message is a sentence for a person (or a model) that says what happened and
what to do next. It never holds a secret.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

RETRY_AFTER_SECONDS = 5
"""The wait that clients are asked for after status 429 or 503."""
STOPPING = "The gateway is stopping; try again in a moment."

REFUSALS = {
    "agent_unavailable": "The agent is starting, or has failed.",
    "approval_required": "A tool that is run requires an approval.",
    "audit_unavailable": "The audit log cannot be written, and `audit_required` is set.",
    "bad_image": "An image cannot be read, or is too large.",
    "bad_input": "An argument is missing, unknown, too long or of another type.",
    "bad_params": "`params` has a value that is not accepted.",
    "busy": "All slots are in use, and none became free in time.",
    "call_again": "The question's call ended with its process, or the agent has changed: call again from the start.",
    "database_unavailable": "An answer cannot be accepted without the database.",
    "images_unsupported": "The agent's model takes no images.",
    "insufficient_scope": "The caller may not call the agent.",
    "limited": "A rule of `gateway.limits` is exceeded.",
    "nesting_too_deep": "Agents call each other, too deep or in a circle.",
    "no_tool": "The tool that is run does not exist.",
}
"""Meanings of the reasons of calls that were not started."""
FAILURES = {
    "cancelled": "The client or another caller ended the call.",
    "deadline": "The call had no answer in its time; `call_timeout_seconds` is the agent's.",
    "internal_error": "A mistake of the gateway's own; the log has it.",
    "llm_error": "The model's provider refused the request or could not be reached.",
    "llm_timeout": "The model's provider did not answer in time.",
    "runtime_error": "The agent's code, or fast-agent, failed.",
    "server_unavailable": "The server of the tool that is run could not be reached.",
    "stopped": "The gateway stopped.",
}
"""Meanings of the reasons of calls that were started and have no answer."""


class GatewayError(Exception):
    """Base of everything the gateway raises on purpose; `reason` names the kind of failure.

    `exit_code` is that of a command that it ends: 2 if a start fails again until an operator changes something.
    """

    reason = "internal_error"
    exit_code = 1

    def __init__(self, message: str, *, reason: str | None = None) -> None:
        super().__init__(message)
        if reason is not None:
            self.reason = reason


class CallRefusedError(GatewayError):
    """The call was not started; the caller may change something or try again later (`busy`, `bad_image`, …)."""

    reason = "refused"


class CallLimitedError(CallRefusedError):
    """A rule of `gateway.limits` refuses the call; the message names the rule and when to try again.

    Attributes:
        rule: the name of the tightest rule.
        retry_after_seconds: the least wait before a call may be admitted, rounded up.
        limit: the number that the rule allows, of `unit`.
        unit: what the number counts; headers of OpenAI's API name it.
    """

    reason = "limited"

    def __init__(
        self,
        message: str,
        *,
        rule: str,
        retry_after_seconds: int,
        limit: int,
        unit: Literal["requests", "tokens"] = "requests",
    ) -> None:
        super().__init__(message)
        self.rule = rule
        self.retry_after_seconds = retry_after_seconds
        self.limit = limit
        self.unit = unit


class AgentUnavailableError(GatewayError):
    """The agent cannot take calls now; the operator has to mend it, or it is still starting (`agent_unavailable`)."""

    reason = "agent_unavailable"


class CallFailedError(GatewayError):
    """The call was started and could not be finished: the model, the runtime or the gateway failed (`llm_error`, …)."""

    reason = "call_failed"


class ProviderError(CallFailedError):
    """A model's provider refused a request or could not be reached; the message has no address."""

    reason = "llm_error"

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        headers: Mapping[str, str] | None = None,
        is_unreached: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers or {}
        self.is_unreached = is_unreached


class AgentStartError(GatewayError):
    """An agent's module or runtime cannot be started; the operator has to mend it (`module_missing`, …).

    `may_be_mended` tells whether a file it came from has changed since, so that another try is worth it at once.
    `places` are the sentences of the message, each with the key of the agent in `agents.yaml` that is wrong (such as
    `servers.0`), for a failure that comes from there. `settings` are the same for keys of fast-agent's own files, which
    keep every agent that reads them from starting.
    """

    reason = "start_failed"

    def __init__(
        self,
        message: str,
        *,
        reason: str | None = None,
        may_be_mended: Callable[[], bool] = lambda: False,
        places: Sequence[tuple[str, str]] = (),
        settings: Sequence[tuple[str, str]] = (),
    ) -> None:
        super().__init__(message, reason=reason)
        self.may_be_mended = may_be_mended
        self.places = tuple(places)
        self.settings = tuple(settings)


class TokenExchangeError(GatewayError):
    """No token for a downstream was obtained. Correct the authorization server or the configuration."""

    reason = "token_exchange_failed"

    def __init__(self, *, server: str, token_endpoint: str, why: str) -> None:
        """Name the downstream and the endpoint; `why` is a clause that holds nothing of what was sent or received."""
        super().__init__(f"no token for server '{server}' from {token_endpoint}: {why}")
        self.why = why


class TokenError(GatewayError):
    """A request's token was not accepted; the message may be sent to the client."""


class TokenRejectedError(TokenError):
    """The token is not valid here."""

    reason = "invalid_token"


class VerificationUnavailableError(TokenError):
    """The token cannot be verified yet: no keys of the authorization server have been received."""

    reason = "verification_unavailable"


class PlatformError(GatewayError):
    """An installed library lacks something the gateway relies on; the installation has to be changed."""

    reason = "platform_mismatch"
