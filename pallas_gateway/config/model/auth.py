"""`gateway.auth` as frozen models: who may call, and by which tokens; `identity/` judges by them.

The docstring under each field is its meaning in `docs/configuration.md` and in the JSON Schema.
"""

from typing import Literal

from pallas_gateway.config.model.section import Section
from pallas_gateway.config.model.values import (
    Algorithms,
    AuthorizationUrl,
    Flag,
    Grant,
    KeyName,
    Leeway,
    Sha256,
    Text,
    Texts,
)


class StaticKeySettings(Section):
    """One named key. `pallas-gateway token new NAME` makes a key and prints this entry for it."""

    name: KeyName
    """Who holds it: the caller's name in logs."""

    sha256: Sha256
    """SHA-256 of the key, in hexadecimal digits; the key itself stands nowhere."""

    grants: tuple[Grant, ...] = ()
    """What its holder may: `view:agents`, `run:agents` (which includes viewing), each also for one agent as in \
`run:agents:research`, and `view:metrics`."""


class JwtSettings(Section):
    """Tokens of an OAuth authorization server, as JWTs (RFC 9068 or alike)."""

    issuer: AuthorizationUrl
    """The server that issues them: the token's `iss`. Like the other URLs here, `http://` only for this machine."""

    jwks_uri: AuthorizationUrl
    """Where its public keys are."""

    audience: Texts = ()
    """Accepted `aud` for all agents: a text or a list. An agent's own URL (for that agent) and the gateway's public \
URL are always accepted; MCP clients ask for the agent's."""

    grants_claim: Text = "scope"
    """The claim that holds the grants: a text with spaces between them, or a list. Other words in it are ignored."""

    name_claim: Text = "sub"
    """The claim that names the caller, for logs."""

    algorithms: Algorithms = ("RS256", "PS256", "ES256", "EdDSA", "Ed25519")
    """Accepted signatures; only those made with a private key."""

    leeway_seconds: Leeway = 10.0
    """How far the clocks of the issuer and this machine may be apart; at most 300."""

    authorization_servers: tuple[AuthorizationUrl, ...] = ()
    """Where clients are sent for a token. Without one: `issuer`."""

    scopes_supported: tuple[Text, ...] = ()
    """What clients are told to ask for. Without one, and with the grants in `scope`: `run:agents:NAME` of the agent."""


class AuthSettings(Section):
    """Who may call. Once this section is there, callers without a token may only do what `anonymous` says."""

    tokens: tuple[StaticKeySettings, ...] = ()
    """Named static keys."""

    jwt: JwtSettings | None = None
    """Tokens of an OAuth authorization server."""

    anonymous: tuple[Grant, ...] = ()
    """Grants of callers without a token."""

    registry: Literal["open", "filtered"] = "open"
    """`open`: the registry shows every agent to everybody. `filtered`: to each caller only what it may view."""

    peer_grants: Literal["inherited", "strict"] = "inherited"
    """`inherited`: who may run an agent lets it call its peers. `strict`: the caller needs grants for those, too."""

    llm_pass_through: Flag = False
    """Hand the caller's token to LLM providers that take it (it was made for this gateway, not for them)."""
