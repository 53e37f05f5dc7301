"""The sign-ins of this user, by gateway, in one file that only its owner can read.

The file is replaced in one step, under a lock, so readers need none.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, time
from typing import Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict

from pallas_gateway.client.private_files import lock_now, replace_file, state_folder
from pallas_gateway.config.model.values import authority
from pallas_gateway.errors import GatewayError

_OF_OTHERS = 0o077
_LOCK_SECONDS = 60.0  # longer than another process needs for a renewal
_RETRY_SECONDS = 0.05


class LoginsError(GatewayError):
    """The file of sign-ins cannot be used; the exit code is 2."""

    reason = "bad_logins"
    exit_code = 2


@dataclass(frozen=True, slots=True)
class Login:
    """One sign-in.

    Attributes:
        issuer: the authorization server.
        client_id: the client there.
        resource: what renewals name as the audience; None to name none.
        access_token: sent to the gateway.
        expires_at: its end in seconds since 1970; None if it is unknown.
        renew_at: when a renewal is to be tried next, likewise.
        refresh_token: renews it; None if the server gave none.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")  # another version's key would be lost when the file is replaced
    issuer: str
    client_id: str
    resource: str | None
    access_token: str = field(repr=False)
    expires_at: float | None = None
    renew_at: float | None = None
    refresh_token: str | None = field(default=None, repr=False)

    @property
    def is_valid(self) -> bool:
        """True if the token has not ended yet; False if its end is unknown."""
        return self.expires_at is not None and self.expires_at > time()

    @property
    def is_due(self) -> bool:
        """True if the token is to be renewed before it is used."""
        return self.renew_at is not None and (self.renew_at <= time() or not self.is_valid)


class _File(BaseModel):
    format: Literal[1]
    logins: dict[str, Login]


def gateway_key(base_url: str) -> str:
    """Return the URL of a gateway in one form: lower-case scheme and host, no default port, no slash at the end."""
    try:
        parts = urlsplit(base_url)
        return f"{authority(parts.scheme, parts.hostname or '', parts.port)}{parts.path.rstrip('/')}"
    except (ValueError, KeyError):  # no URL, which is reported where it is asked
        return base_url


def default_path(environ: Mapping[str, str], home: Path) -> Path:
    """`logins.json` in the state folder of the user."""
    return state_folder(environ, home) / "logins.json"


class Logins:
    """The file of sign-ins."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of_user(cls) -> Logins:
        """Return those of the user who runs this process."""
        return cls(default_path(os.environ, Path.home()))

    def find(self, base_url: str) -> Login | None:
        """Return the sign-in at a gateway.

        Raises:
            LoginsError: the file cannot be read, others can read it, or it holds something else.
        """
        return self.all().get(gateway_key(base_url))

    def all(self) -> dict[str, Login]:
        """Return all sign-ins by the URLs of their gateways. Raises as `find`."""
        try:
            content = self._content()
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except OSError as error:
            raise LoginsError(f"{self.path} cannot be read: {error.strerror}.") from error
        try:
            return _File.model_validate_json(content).logins
        except ValueError:
            # `from None`: the library's error quotes the content, which is tokens.
            left = "It is left as it is; move it away, and sign in again"
            raise LoginsError(f"{self.path} is not a file of sign-ins. {left}: pallas-gateway login.") from None

    def put(self, base_url: str, login: Login) -> None:
        """Store a sign-in; within `locked`. Raises as `find`, and if the file cannot be written."""
        self._write({**self.all(), gateway_key(base_url): login})

    def remove(self, base_url: str) -> None:
        """Delete a sign-in; within `locked`. Raises as `put`."""
        self._write({key: login for key, login in self.all().items() if key != gateway_key(base_url)})

    @asynccontextmanager
    async def locked(self) -> AsyncIterator[None]:
        """Keep other processes and tasks from changing the file. Raises as `lock`."""
        handle = await self.lock()
        try:
            yield
        finally:
            os.close(handle)

    async def lock(self, *, waits: bool = True) -> int:
        """Lock the file as `locked` does, and return the descriptor whose end releases it.

        Raises:
            LoginsError: the folder cannot be written, or another process does not release the lock; unless it `waits`,
                at once.
        """
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Not the file itself: that is replaced.
            handle = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._unwritable(error) from error
        try:
            until = monotonic() + _LOCK_SECONDS
            while not lock_now(handle):
                if not waits or monotonic() > until:
                    raise LoginsError(f"Another process has locked {self.path} for {_LOCK_SECONDS:g} s.")
                await asyncio.sleep(_RETRY_SECONDS)
            # Before a renewal, which ends the stored refresh token: its result must be stored.
            if not os.access(self.path.parent, os.W_OK | os.X_OK):
                raise LoginsError(f"{self.path} cannot be written: its folder is read-only. Nothing was changed.")
        except BaseException:
            os.close(handle)
            raise
        return handle

    def _content(self) -> bytes:
        handle = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            status = os.fstat(handle)
            mode = stat.S_IMODE(status.st_mode)
            if status.st_uid != os.geteuid() or mode & _OF_OTHERS:
                why = f"is not yours alone (owner {status.st_uid}, mode {mode:o}), so its tokens are not used"
                raise LoginsError(f"{self.path} {why}. If nobody else has read it: chmod 600 {self.path}")
            return file.read()

    def _write(self, logins: Mapping[str, Login]) -> None:
        try:
            replace_file(self.path, _File(format=1, logins=dict(logins)).model_dump_json(indent=1).encode())
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> LoginsError:
        return LoginsError(f"{self.path} cannot be written: {error.strerror}. Nothing was changed.")


async def stored_token(base_url: str) -> str | None:
    """Return the token to send to the gateway for which it was stored, renewed before it ends; None if there is none.

    Raises:
        LoginsError: the file of sign-ins cannot be used.
        RefusedError: the sign-in has ended.
        UnreachableError: the token has expired, and the authorization server does not answer.
    """
    logins = Logins.of_user()
    login = logins.find(base_url)
    if login is not None and login.is_due:
        from pallas_gateway.client.sign_in.authorization_server import renewed  # noqa: PLC0415  most requests need none

        login = await renewed(logins, base_url, login)
    return login.access_token if login is not None else None
