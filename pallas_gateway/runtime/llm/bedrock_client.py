"""The client of Amazon Bedrock: kept between calls, with limits and readable errors. Used in threads.

Imported when an agent uses Bedrock, because its library, boto3, is optional.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from http import HTTPStatus
from threading import Lock
from typing import TYPE_CHECKING, Any

import boto3
from botocore import exceptions
from botocore.config import Config
from botocore.eventstream import ParserError
from botocore.httpsession import URLLib3Session
from urllib3.exceptions import HTTPError, ReadTimeoutError

from pallas_gateway.calls import current
from pallas_gateway.calls.provider_failures import CUT_OFF, UNREACHED, ended_early, incomplete, reported, too_long
from pallas_gateway.errors import ProviderError
from pallas_gateway.limits import AFTER_LAST_SECONDS, LARGEST_ANSWER_BYTES, LARGEST_ERROR_BYTES, MOST_REQUESTS
from pallas_gateway.runtime.llm.bedrock_turns import current_turn
from pallas_gateway.telemetry.redaction import hide_in_this_call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pallas_gateway.runtime.compat.requirements import ReliedOn

CONNECT_SECONDS = 10.0
MOST_CONNECTIONS = 256
"""Connections that are kept open; more are made if more calls run at once."""
MOST_CLIENTS = 16
"""Most clients that are kept: one for each profile, region and set of credentials."""
RELIED_ON: ReliedOn = ((URLLib3Session, "_pool_classes_by_scheme", ()),)
_NO_CREDENTIALS = "no AWS credentials are found (set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or `bedrock.profile`)"
_MAY_BE_THE_REQUEST_FORM = "ValidationException"
"""The error after which fast-agent tries other forms of the request; after other errors they would fail too."""

_clients: dict[tuple[Any, ...], Any] = {}
_making = Lock()


def client_of(profile: str | None, region: str | None) -> BedrockClient:
    """The kept client of a profile and region. It is thread-safe; making one reads megabytes of data.

    Raises:
        ProviderError: the environment has no profile, region or credentials for it.
    """
    variables = sorted((name, value) for name, value in os.environ.items() if name.startswith("AWS_"))
    key = (profile, region, *variables)
    with _making:
        if key not in _clients:
            if len(_clients) >= MOST_CLIENTS:
                _clients.clear()  # the clients of replaced keys are not used again
            with _translated():
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
    """The two operations that fast-agent calls, with errors after which it does not try other forms of the request."""

    def __init__(self, client: Any, credentials: Any) -> None:
        self._client = client
        self._credentials = credentials
        self._refused: list[tuple[str, dict[str, Any]]] = []
        self._refusal: Mapping[str, Any] | None = None

    @property
    def refuses_streams(self) -> bool:
        """Return True if the last refusal reports that the model does not support streams for the request."""
        return self._refusal is not None and "stream" in self._refusal["Error"].get("Message", "").lower()

    def converse(self, **request: Any) -> Any:
        """Call the library's method."""
        return self._ask("converse", request)

    def converse_stream(self, **request: Any) -> Any:
        """Call the library's method; a stream without its last event fails."""
        response = self._ask("converse_stream", request)
        return {**response, "stream": _events(response["stream"])}

    def _ask(self, operation: str, request: dict[str, Any]) -> Any:
        if (turn := current_turn()) is not None:
            turn.check()
        requests = current.current_turn()
        if self._refusal is not None:
            refusal = _refusal(self._refusal)
            if requests.sent >= MOST_REQUESTS or (operation, request) in self._refused:
                raise refusal
            if turn is not None:
                turn.say_repeated(str(refusal), requests.sent)
        requests.sent += 1
        try:
            with _translated():
                self._hide_credentials()
                return getattr(self._client, operation)(**request)
        except exceptions.ClientError as error:  # fast-agent tries another form of the request
            self._refused.append((operation, deepcopy(request)))
            self._refusal = error.response
            raise

    def _hide_credentials(self) -> None:
        """Hide the credentials in logs: they may come from a file, a login or the cloud, and change."""
        if self._credentials is not None:
            frozen = self._credentials.get_frozen_credentials()
            for secret in filter(None, (frozen.secret_key, frozen.token)):
                hide_in_this_call(secret)


def _events(stream: Any) -> Iterator[dict[str, Any]]:
    is_whole = False
    try:
        with _translated(in_stream=True):
            for event in stream:
                if "messageStop" in event:
                    is_whole = True
                    _wait_briefly()
                yield event
    except TimeoutError:
        if not is_whole:
            raise
    finally:
        stream.close()
    if not is_whole:
        raise ended_early()


def _wait_briefly() -> None:
    if (turn := current_turn()) is not None:
        turn.wait_at_most(AFTER_LAST_SECONDS)


@contextmanager
def _translated(*, in_stream: bool = False) -> Iterator[None]:
    try:
        yield
    except exceptions.ClientError as error:
        if error.response["Error"].get("Code") == _MAY_BE_THE_REQUEST_FORM and not in_stream:
            raise
        raise _refusal(error.response) from None
    except ParserError as error:
        raise incomplete() from error
    except (exceptions.ReadTimeoutError, ReadTimeoutError) as error:
        raise TimeoutError("Bedrock was silent") from error
    except exceptions.ConnectionError as error:
        raise ProviderError(UNREACHED, is_unreached=True) from error
    except (exceptions.HTTPClientError, HTTPError) as error:
        raise ProviderError(CUT_OFF, is_unreached=not in_stream) from error
    except exceptions.BotoCoreError as error:  # credentials, profiles, regions
        lacks_credentials = isinstance(error, exceptions.NoCredentialsError)
        raise ProviderError(_NO_CREDENTIALS if lacks_credentials else f"Bedrock: {error}") from error


def _refusal(response: Mapping[str, Any]) -> ProviderError:
    error, about = response["Error"], response.get("ResponseMetadata", {})
    status, message = about.get("HTTPStatusCode"), error.get("Message") or error.get("Code")
    text = message if status else reported(message)
    return ProviderError(str(text), status=status, headers=about.get("HTTPHeaders"))
