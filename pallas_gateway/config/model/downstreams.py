"""The keys of an MCP server's declaration that are the gateway's: about the caller's token, and about processes.

The configuration's checks (`downstream_servers`) and the runtime both read them by these models, so that both accept
and refuse the same.
"""

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, field_validator, model_validator

from pallas_gateway.config.model.section import Section
from pallas_gateway.config.model.values import (
    AuthorizationUrl,
    Count,
    CountOrZero,
    Flag,
    ResourceUri,
    Seconds,
    SecondsOrZero,
    Text,
)
from pallas_gateway.config.yaml.expansion import PLACEHOLDER

OWN_AUTHORIZATION = frozenset({"authorization", "x-hf-authorization"})
"""Headers (in lower case) with which a server has credentials of its own, as fast-agent sees it."""


class TokenExchangeSettings(Section):
    """How the caller's token becomes one for this server (RFC 8693)."""

    token_endpoint: AuthorizationUrl
    """Where the authorization server exchanges tokens."""

    client_id: Text | None = None
    """The gateway's name at the authorization server."""

    client_secret: Text | None = Field(default=None, repr=False)
    """Its secret. Without one the gateway is a public client."""

    client_auth: Literal["basic", "post"] = "basic"
    """How it sends them: HTTP Basic, or both in the body (RFC 6749 section 2.3.1)."""

    audience: Text | None = None
    """Name of the server at the authorization server, if that requires one."""

    resource: ResourceUri | None = None
    """URI that the token is for. Without one: the server's URL, without its query."""

    scope: Text | None = None
    """Scopes to request, with spaces between them. Without any: those that the authorization server grants."""

    @field_validator("*", mode="before")
    @classmethod
    def _is_expanded(cls, value: object) -> object:
        """A placeholder left in a value would go to the authorization server as it is written."""
        if isinstance(value, str) and (unset := PLACEHOLDER.search(value)):
            name = unset["name"]
            raise ValueError(f"environment variable {name} is not set; set it, or write ${{{name}:-default}}")
        return value

    @field_validator("client_secret", mode="before")
    @classmethod
    def _is_given(cls, value: object) -> object:
        if value is None:  # a variable that is empty must not make a public client of a confidential one
            raise ValueError("must not be empty; leave the key out for a public client")
        return value

    @model_validator(mode="after")
    def _has_a_name_for_its_secret(self) -> Self:
        if self.client_secret is not None and self.client_id is None:
            raise ValueError("client_secret requires a client_id")
        return self


def _empty_is_a_mapping(value: object) -> object:
    return {} if value is None else value  # so that a bare key is reported, and never means "none"


class Forwarding(Section):
    """The gateway's keys of a server's declaration; others are ignored."""

    model_config = ConfigDict(extra="ignore")

    forward_inbound_auth: Flag | None = None
    token_exchange: Annotated[TokenExchangeSettings | None, BeforeValidator(_empty_is_a_mapping)] = None

    listing_seconds: SecondsOrZero = 60.0
    """A list of tools received with a caller's token serves later calls of that caller so long. 0: no list is kept."""


def has_own_authorization(headers: Mapping[str, str] | None, url: str | None) -> bool:
    """Return True if a server's headers or URL (`https://user:password@…`) hold credentials, which then win."""
    named = any(name.strip().lower() in OWN_AUTHORIZATION for name in headers or ())
    authority = (url or "").partition("://")[2].partition("/")[0]  # not urlsplit: the URL may be malformed
    return named or "@" in authority


def why_never_exchanged(
    forwarding: Forwarding, *, url: str | None, own_authorization: bool, sent_by_fast_agent: bool
) -> str | None:
    """Return the reason why a declared `token_exchange` would have no effect; None if it has one.

    Args:
        forwarding: what the server's declaration says.
        url: the server's address, None for one that is a child process.
        own_authorization: it has credentials of its own.
        sent_by_fast_agent: it has fast-agent's `auth.forward`.
    """
    if forwarding.token_exchange is None:
        return None
    if url is None:
        return "is only for servers with a url; a child process gets no token"
    if sent_by_fast_agent:
        return "cannot be used with auth.forward, which sends the caller's own token; write forward_inbound_auth: true"
    if not forwarding.forward_inbound_auth:
        return "requires forward_inbound_auth: true"
    if own_authorization:
        return "is never used, because the server has an Authorization header of its own; remove one of them"
    return None


class ProcessSettings(Section):
    """The keys of a server's declaration about its processes; others are ignored."""

    model_config = ConfigDict(extra="ignore")

    warm: CountOrZero = 1
    """Processes that are started and initialised in advance."""

    max_processes: Count = 16
    """Processes at once, those in use and those kept ready."""

    idle_seconds: Seconds = 300.0
    """A process that was kept ready for so long is ended."""

    shared: Flag = False
    """All calls use one process, of a server that keeps no state of a caller."""

    stderr: Text | None = None
    """A file to which the processes append what they write to stderr."""


def why_without_processes(written: ProcessSettings, transport: str) -> str | None:
    """Return the reason why declared keys have no effect; None if all have one, or none is declared."""
    keys = sorted(ProcessSettings.model_fields.keys() & written.model_fields_set)
    if transport != "stdio" and keys:
        return f"{', '.join(keys)}: only for stdio servers; the gateway starts no process of this one"
    if written.warm > written.max_processes and not written.shared:
        limit = written.max_processes
        return f"warm: {written.warm} is more than max_processes ({limit}); lower it or raise max_processes"
    return None
