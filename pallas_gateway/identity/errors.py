"""Why somebody was not let in."""

from pallas_gateway.errors import GatewayError


class TokenRejectedError(GatewayError):
    """A token was presented that this gateway does not accept; the message says why and is safe to send back."""

    reason = "invalid_token"


class VerificationUnavailableError(GatewayError):
    """A token cannot be judged now: the authorization server's keys have never been had. It may be tried again."""

    reason = "verification_unavailable"
