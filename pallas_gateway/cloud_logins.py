"""The gateway's own logins at clouds, with the identity of its environment: Google's and Azure's default credentials.

Credentials are kept for all calls as long as the environment does not change. Their libraries block, so tokens are
fetched in a thread, once for all turns that wait.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from time import time
from typing import Any

from pallas_gateway.daemon_threads import SharedWork
from pallas_gateway.errors import ProviderError
from pallas_gateway.telemetry.redaction import hide_in_this_call

_GOOGLE_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_AZURE_SCOPE = "https://cognitiveservices.azure.com/.default"
_PREFIXES = ("GOOGLE_", "GCLOUD_", "CLOUDSDK_", "GCE_", "AZURE_", "IDENTITY_", "MSI_")
FETCH_SECONDS = 30.0
"""Read timeout of Google's token server; Azure's library has its own limits."""
RENEW_SECONDS = 300.0
"""Time before the expiry of an Azure token at which the next one is fetched."""
_INSTALL_REQUESTS = "Google's login needs the package requests; install it with: pip install requests"
_HOW_TO_LOG_IN = "set GOOGLE_APPLICATION_CREDENTIALS, or run `gcloud auth application-default login`"

_kept: dict[tuple[Any, ...], Any] = {}


class GoogleIdentity:
    """Google's application default credentials, with their project if they have one."""

    def __init__(self) -> None:
        """Load the credentials, which blocks.

        Raises:
            ProviderError: there are none, or a package is missing.
        """
        import google.auth  # noqa: PLC0415  only Vertex AI needs it

        try:
            from google.auth.transport.requests import Request  # noqa: PLC0415
        except ImportError as error:
            raise ProviderError(_INSTALL_REQUESTS) from error
        try:
            self.credentials, self.project = google.auth.default(scopes=[_GOOGLE_SCOPE])
        except (google.auth.exceptions.GoogleAuthError, OSError, ValueError) as error:
            raise ProviderError(f"Google's credentials cannot be loaded ({error}); {_HOW_TO_LOG_IN}") from error
        self._request = partial(Request(), timeout=FETCH_SECONDS)
        self._errors: tuple[type[Exception], ...] = (google.auth.exceptions.GoogleAuthError,)
        self._unreached = google.auth.exceptions.TransportError
        self._fetching = SharedWork("pallas-google-login")

    async def ready(self) -> None:
        """Fetch a token if there is no valid one.

        Raises:
            ProviderError: the login failed.
        """
        if not self.credentials.valid:
            try:
                await self._fetching.result(partial(self.credentials.refresh, self._request))
            except self._errors as error:
                _forget(self)  # their source may have changed
                unreached = isinstance(error, self._unreached)
                raise ProviderError(_why_google(error), is_unreached=unreached) from error
        hide_in_this_call(str(self.credentials.token))


class AzureIdentity:
    """Azure's default credential: a token provider for OpenAI's client."""

    def __init__(self, make_credential: Callable[[], Any]) -> None:
        self._credential = make_credential()
        self._token: Any = None
        self._fetching = SharedWork("pallas-azure-login")

    def get_token(self, *scopes: str) -> Any:
        """Call the library's method."""
        return self._credential.get_token(*scopes)

    async def token(self) -> str:
        """Return a token that is valid for some minutes at least.

        Raises:
            ProviderError: the login failed.
        """
        if self._token is None or self._token.expires_on - time() < RENEW_SECONDS:
            try:
                self._token = await self._fetching.result(partial(self._credential.get_token, _AZURE_SCOPE))
            except Exception as error:
                first = next(iter(str(error).splitlines()), "") or type(error).__name__
                raise ProviderError(f"Azure's login failed: {first}") from error
        token: str = self._token.token
        hide_in_this_call(token)
        return token


def google_identity() -> GoogleIdentity:
    """The identity of the environment. The first call blocks, so an agent's start makes it in a thread."""
    return _keep("google", GoogleIdentity)


def azure_identity(make_credential: Callable[[], Any]) -> AzureIdentity:
    """The identity of the environment. The first call blocks."""
    return _keep("azure", partial(AzureIdentity, make_credential))


def _keep[T](name: str, make: Callable[[], T]) -> T:
    variables = sorted((name, value) for name, value in os.environ.items() if name.startswith(_PREFIXES))
    key = (name, *variables)
    if key not in _kept:
        _kept[key] = make()
    kept: T = _kept[key]
    return kept


def _forget(identity: Any) -> None:
    for key in [key for key, kept in _kept.items() if kept is identity]:
        del _kept[key]


def _why_google(error: Exception) -> str:
    described = error.args[1] if len(error.args) > 1 and isinstance(error.args[1], dict) else {}
    why = described.get("error_description") or described.get("error")
    return f"Google's login failed: {why or type(error).__name__}"
