"""From a request's bearer token to its caller: static keys first, then the authorization server's tokens.

Deliberately without any memory of who called before: every request is looked at anew, so a revoked key or an expired
token ends with the next request, on whatever connection it comes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pallas_gateway.identity.caller import ANONYMOUS_NAME, Caller
from pallas_gateway.identity.errors import TokenRejectedError
from pallas_gateway.identity.grants import Grants
from pallas_gateway.identity.jwt_tokens import JwtVerifier
from pallas_gateway.identity.static_keys import hash_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    import httpx

    from pallas_gateway.config.model.auth import AuthSettings, StaticKeySettings
    from pallas_gateway.identity.secret import Secret
    from pallas_gateway.tasks import TaskOwner


class Authenticator:
    """Knows the static keys by their hashes and verifies the tokens of one authorization server."""

    def __init__(self, settings: AuthSettings, *, client: httpx.AsyncClient, tasks: TaskOwner) -> None:
        self._anonymous = Caller(ANONYMOUS_NAME, grants=Grants.of(settings.anonymous))
        self._static_keys = {key.sha256: _holder(key) for key in settings.tokens}
        self._verifier = JwtVerifier(settings.jwt, client=client, tasks=tasks) if settings.jwt else None

    def begin(self) -> None:
        """Fetch the authorization server's keys in the background, so that the first caller need not wait for them."""
        if self._verifier is not None:
            self._verifier.keys.refresh_soon()

    async def identify(self, bearer: Secret | None, *, audiences: Iterable[str]) -> Caller:
        """The caller who holds `bearer`; without one, whoever callers without a token are.

        Args:
            bearer: the request's token.
            audiences: what else than the configured audiences a token may name to be good here.

        Raises:
            TokenRejectedError: the token is none of ours, or not valid (any more, yet, or here).
            VerificationUnavailableError: it cannot be judged now.
        """
        if bearer is None:
            return self._anonymous
        holder = self._static_keys.get(hash_of(bearer.reveal()))
        if holder is not None:
            return holder
        if self._verifier is None:
            raise TokenRejectedError("the token is not known")
        return await self._verifier.identify(bearer, audiences=audiences)

    def is_own_key(self, bearer: Secret) -> bool:
        """Whether this is one of the static keys, which are nobody else's to see."""
        return hash_of(bearer.reveal()) in self._static_keys


def _holder(key: StaticKeySettings) -> Caller:
    # Without a bearer: a static key opens this gateway and is nobody else's to see.
    return Caller(key.name, grants=Grants.of(key.grants), authenticated=True, owner=f"key:{key.name}")
