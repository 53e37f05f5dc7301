"""Errors of authentication."""

from pallas_gateway.errors import GatewayError


class TokenError(GatewayError):
    """A request's token was not accepted; the message may be sent to the client."""


class TokenRejectedError(TokenError):
    """The token is not valid here."""

    reason = "invalid_token"


class VerificationUnavailableError(TokenError):
    """The token cannot be verified yet: no keys of the authorization server have been received."""

    reason = "verification_unavailable"
