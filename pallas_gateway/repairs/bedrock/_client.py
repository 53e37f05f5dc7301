"""The client of Amazon Bedrock: kept between calls, with limits. Used in the threads of turns.

Imported when an agent uses Bedrock, because its library, boto3, is optional.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from http import HTTPStatus
from threading import Lock
from typing import Any

import boto3
from botocore.config import Config

from pallas_gateway.calls.provider_failures import too_long
from pallas_gateway.limits import LARGEST_ANSWER_BYTES, LARGEST_ERROR_BYTES
from pallas_gateway.repairs.bedrock._turns import current_turn
from pallas_gateway.telemetry.redaction import hide_in_this_call

CONNECT_SECONDS = 10.0
MOST_CONNECTIONS = 256
"""Connections that are kept open; more are made if more calls run at once."""
MOST_CLIENTS = 16
"""Most clients that are kept: one for each profile, region and set of credentials."""

_clients: dict[tuple[Any, ...], Any] = {}
_making = Lock()


def client_of(profile: str | None, region: str | None) -> BedrockClient:
    """The kept client of a profile and region. It is thread-safe; making one reads megabytes of data."""
    variables = sorted((name, value) for name, value in os.environ.items() if name.startswith("AWS_"))
    key = (profile, region, *variables)
    with _making:
        if key not in _clients:
            if len(_clients) >= MOST_CLIENTS:
                _clients.clear()  # the clients of replaced keys are not used again
            _clients[key] = _new_client(profile, region)
        return BedrockClient(*_clients[key])


def _new_client(profile: str | None, region: str | None) -> tuple[Any, Any]:
    """Make the library's client; return it with the credentials by which it signs requests."""
    config = Config(
        connect_timeout=CONNECT_SECONDS,
        max_pool_connections=MOST_CONNECTIONS,
        retries={"total_max_attempts": 1},  # the gateway repeats and logs requests itself
    )
    session = boto3.Session(profile_name=profile)
    client = session.client("bedrock-runtime", region_name=region, config=config)
    pools = client._endpoint.http_session._pool_classes_by_scheme
    for scheme, pool in list(pools.items()):
        connection = type(pool.ConnectionCls.__name__, (_Watched, pool.ConnectionCls), {})
        pools[scheme] = type(pool.__name__, (pool,), {"ConnectionCls": connection})
    return client, session.get_credentials()


class _Watched:
    """A mixin for the library's classes of connections."""

    def request(self: Any, *arguments: Any, **options: Any) -> Any:
        if (turn := current_turn()) is not None and self.sock is not None:
            turn.takes(self.sock)  # a socket that an earlier turn opened
        return super().request(*arguments, **options)  # type: ignore[misc]

    def getresponse(self: Any, *arguments: Any, **options: Any) -> Any:
        if (turn := current_turn()) is not None:
            self.timeout = turn.idle_seconds
            turn.takes(self.sock)
        response = super().getresponse(*arguments, **options)  # type: ignore[misc]
        response.stream = partial(_limited, response, response.stream)
        return response


def _limited(response: Any, stream: Callable[..., Iterator[bytes]], *arguments: Any, **options: Any) -> Iterator[bytes]:
    """Yield the pieces of a body. Over its limit, an error is cut off and an answer is refused."""
    is_error = response.status >= HTTPStatus.MULTIPLE_CHOICES
    left = LARGEST_ERROR_BYTES if is_error else LARGEST_ANSWER_BYTES
    for piece in stream(*arguments, **options):
        left -= len(piece)
        if left < 0:
            response.close()
            if is_error:
                return
            raise too_long()
        yield piece


class BedrockClient:
    """The two operations that fast-agent calls."""

    def __init__(self, client: Any, credentials: Any) -> None:
        self._client = client
        self._credentials = credentials

    def converse(self, **request: Any) -> Any:
        """Call the library's method."""
        return self._ask("converse", request)

    def converse_stream(self, **request: Any) -> Any:
        """Call the library's method."""
        return self._ask("converse_stream", request)

    def _ask(self, operation: str, request: dict[str, Any]) -> Any:
        if (turn := current_turn()) is not None:
            turn.check()
        if self._credentials is not None:  # they may come from a file, a login or the cloud, and change
            frozen = self._credentials.get_frozen_credentials()
            for secret in filter(None, (frozen.secret_key, frozen.token)):
                hide_in_this_call(secret)
        return getattr(self._client, operation)(**request)
