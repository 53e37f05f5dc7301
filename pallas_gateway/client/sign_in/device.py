"""Sign-in with a code that the person enters in a browser of any machine (RFC 8628)."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pallas_gateway.client.gateway_client import UnreachableError
from pallas_gateway.client.output import problem
from pallas_gateway.client.sign_in.authorization_server import OAuthError, first_mistake
from pallas_gateway.config.model.values import AuthorizationUrl, Text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pallas_gateway.client.sign_in.authorization_server import AuthorizationServer, Offer

GRANT = "urn:ietf:params:oauth:grant-type:device_code"
_SLOWER_SECONDS = 5.0
_MOST_SECONDS = 1800.0


class _Code(BaseModel):
    model_config = ConfigDict(frozen=True)

    device_code: str = Field(min_length=1, repr=False)
    user_code: Text
    verification_uri: AuthorizationUrl
    verification_uri_complete: AuthorizationUrl | None = None
    expires_in: float = Field(gt=0, allow_inf_nan=False)
    interval: float = Field(default=5.0, ge=0, le=300)


async def sign_in(
    server: AuthorizationServer, offer: Offer, *, pause: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> dict[str, Any]:
    """Show a code, and wait until the person has signed in with it; return the answer of the token endpoint.

    Raises:
        OAuthError: the server has no device codes, the person refused, or the code has expired.
        UnreachableError: the authorization server does not answer.
    """
    code = await _code(server, offer)
    problem(f"To sign in, open this page in any browser and enter the code {code.user_code}:\n")
    problem(f"  {code.verification_uri}\n")
    if code.verification_uri_complete is not None:
        problem(f"The same with the code in it: {code.verification_uri_complete}")
    interval, until = code.interval, monotonic() + min(code.expires_in, _MOST_SECONDS)
    while monotonic() < until:
        await pause(interval)
        try:
            return await server.token(GRANT, offer, device_code=code.device_code)
        except UnreachableError:  # it is asked again, less often (RFC 8628, section 3.5)
            interval *= 2
        except OAuthError as error:
            if error.code == "slow_down":
                interval += _SLOWER_SECONDS
            elif error.code != "authorization_pending":
                raise
    raise OAuthError("The code has expired before anybody signed in with it. Start again.", "expired_token")


async def _code(server: AuthorizationServer, offer: Offer) -> _Code:
    endpoint, issuer = server.metadata.device_authorization_endpoint, server.metadata.issuer
    if endpoint is None:
        raise OAuthError(f"{issuer} offers no sign-in by a code. Start again without --device.")
    form = {"client_id": offer.client_id, "scope": " ".join(offer.scopes)}
    resource = {"resource": offer.resource} if offer.resource is not None else {}
    answer = await server.post(endpoint, {**form, **resource})
    try:
        return _Code.model_validate(answer)
    except ValidationError as error:
        raise OAuthError(f"{issuer} gave a code that cannot be used: {first_mistake(error)}.") from None
