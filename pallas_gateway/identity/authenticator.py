"""The caller of a request's bearer token: static keys first, then the authorization server's tokens.

Results are deliberately not cached: a revoked key or an expired token is refused at the next request, on every
connection.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pallas_gateway.errors import TokenRejectedError
from pallas_gateway.identity.caller import ANONYMOUS_NAME, Caller
from pallas_gateway.identity.grants import Grants
from pallas_gateway.identity.static_keys import hash_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import httpx

    from pallas_gateway.config.model.auth import AuthSettings
    from pallas_gateway.identity.jwt_tokens import JwtVerifier
    from pallas_gateway.identity.secret import Secret
    from pallas_gateway.tasks import TaskOwner


@dataclass(frozen=True, slots=True)
class _StaticKey:
    """The holder of a key, and the last moment at which the key is accepted."""

    holder: Caller
    not_after: datetime | None


def utc_now() -> datetime:
    return datetime.now(UTC)


class Authenticator:
    """Identifies the holders of static keys and of one authorization server's tokens.

    Attributes:
        anonymous: the caller without a token.
    """

    def __init__(
        self,
        settings: AuthSettings,
        *,
        client: httpx.AsyncClient,
        tasks: TaskOwner,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self._now = now
        self.anonymous = Caller(ANONYMOUS_NAME, grants=Grants.of(settings.anonymous))
        # Without a bearer: a static key must not be sent to other servers.
        self._static_keys = {
            hash_: _StaticKey(
                Caller(key.name, grants=Grants.of(key.grants), authenticated=True, owner=f"key:{key.name}", kind="key"),
                key.not_after,
            )
            for key in settings.tokens
            for hash_ in key.sha256
        }
        self._verifier: JwtVerifier | None = None
        if settings.jwt:
            from pallas_gateway.identity.jwt_tokens import JwtVerifier  # noqa: PLC0415  joserfc has 50 modules

            self._verifier = JwtVerifier(settings.jwt, client=client, tasks=tasks)

    def begin(self) -> None:
        """Fetch the authorization server's keys in the background, so that the first caller does not wait for them."""
        if self._verifier is not None:
            self._verifier.keys.refresh_soon()

    async def identify(self, bearer: Secret | None, *, audiences: Iterable[str]) -> Caller:
        """The holder of `bearer`; without a token the anonymous caller.

        Args:
            bearer: the request's token.
            audiences: audiences that a token may name, besides the configured ones.

        Raises:
            TokenRejectedError: the token is unknown, expired, not yet valid, or for another audience.
            VerificationUnavailableError: the token cannot be verified now.
        """
        if bearer is None:
            return self.anonymous
        key = self._static_keys.get(hash_of(bearer.reveal()))
        if key is not None:
            if key.not_after is not None and self._now() > key.not_after:
                raise TokenRejectedError("the key has expired")
            return key.holder
        if self._verifier is None:
            raise TokenRejectedError("the token is not known")
        return await self._verifier.identify(bearer, audiences=audiences)

    def key_named(self, name: str) -> Caller | None:
        """Return the holder of a static key that is accepted now; None if there is none of this name."""
        keys = (one for one in self._static_keys.values() if one.holder.name == name)
        return next((one.holder for one in keys if one.not_after is None or self._now() <= one.not_after), None)

    def is_own_key(self, bearer: Secret) -> bool:
        """Return true for a static key, which must not be sent to other servers."""
        return hash_of(bearer.reveal()) in self._static_keys
