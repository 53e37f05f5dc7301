"""`gateway.auth` as frozen models: callers and their tokens. `identity/` uses them.

The docstring under each field is its meaning in `docs/operate/configuration.md` and in the JSON Schema.
"""

from typing import Literal

from pallas_gateway.config.model.section import Section
from pallas_gateway.config.model.values import (
    Algorithms,
    AuthorizationUrl,
    Flag,
    Grant,
    Hashes,
    KeyName,
    Leeway,
    NotAfter,
    Scope,
    Text,
    Texts,
)


class StaticKeySettings(Section):
    """One named key. `pallas-gateway token new NAME` makes a key and prints this entry for it."""

    name: KeyName
    """The holder: the caller's name in logs."""

    sha256: Hashes
    """SHA-256 of the key, in hexadecimal digits. While the key is rotated, a list of the new and the old one."""

    grants: tuple[Grant, ...] = ()
    """[Grants](security.md#access) of the caller that sends it, such as `run:agents`."""

    not_after: NotAfter | None = None
    """Last moment at which the key is accepted: a date (until its end, UTC), or a date and time with a zone (RFC \
3339)."""


class JwtSettings(Section):
    """Tokens of an OAuth authorization server, as JWTs (such as RFC 9068)."""

    issuer: AuthorizationUrl
    """The server that issues them: `iss` of the token. `http://` only for this machine."""

    jwks_uri: AuthorizationUrl
    """URL of its public keys."""

    audience: Texts = ()
    """Accepted `aud` for all agents, beside the gateway's public URL and the agent's own."""

    grants_claim: Text = "scope"
    """The claim with the grants: a text with spaces between them, or a list. Other words are ignored."""

    name_claim: Text = "sub"
    """The claim that names the caller, for logs."""

    algorithms: Algorithms = ("RS256", "PS256", "ES256", "EdDSA", "Ed25519")
    """Accepted signature algorithms, all with a private key."""

    leeway_seconds: Leeway = 10.0
    """Tolerated difference between the clocks, at most 300."""

    authorization_servers: tuple[AuthorizationUrl, ...] = ()
    """Authorization servers that clients are told to use. Default: `issuer`."""

    scopes_supported: tuple[Text, ...] = ()
    """Scopes that clients are told to request. Default, if `scope` holds the grants: `run:agents:NAME` of the agent."""


class AuthSettings(Section):
    """Who may call. With this section, callers without a token have only the grants in `anonymous`."""

    tokens: tuple[StaticKeySettings, ...] = ()
    """Named static keys."""

    jwt: JwtSettings | None = None
    """Tokens of an OAuth authorization server."""

    console_client_id: Text | None = None
    """Public client at the authorization server by which people [sign in](../use/sign-in.md). It requires `jwt`."""

    console_scopes: tuple[Scope, ...] | None = None
    """Scopes to request at a sign-in. Default: `openid`, `offline_access` and the scopes that clients are told to \
request."""

    console_send_resource: Flag = True
    """Send the gateway's public URL as `resource` (RFC 8707) to the authorization server; `false` for servers that \
refuse it, such as Entra ID."""

    anonymous: tuple[Grant, ...] = ()
    """Grants of callers without a token."""

    registry: Literal["open", "filtered"] = "open"
    """`open`: the registry lists every agent for all. `filtered`: for each caller the agents that it may view."""

    peer_grants: Literal["inherited", "strict"] = "inherited"
    """`inherited`: an agent may call its peers for any of its callers. `strict`: callers require grants for them."""

    llm_pass_through: Flag = False
    """Send the caller's token, which was not issued for them, to LLM providers that accept it."""
