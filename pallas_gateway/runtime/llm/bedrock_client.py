"""The client of Amazon Bedrock: kept, watched, and with errors that a person understands. Used in threads.

Imported once an agent uses Bedrock, whose library, boto3, is not the gateway's own.
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

from pallas_gateway.runtime.call_scope import Requests
from pallas_gateway.runtime.llm.attempts import MOST_REQUESTS, ProviderError
from pallas_gateway.runtime.llm.bedrock_turns import current_turn
from pallas_gateway.runtime.llm.endings import AFTER_LAST_SECONDS, ended_early, incomplete
from pallas_gateway.runtime.llm.limits import LARGEST_ANSWER_BYTES, LARGEST_ERROR_BYTES, too_long
from pallas_gateway.runtime.provider_failures import CUT_OFF, UNREACHED, reported
from pallas_gateway.telemetry.redaction import hide_in_this_call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pallas_gateway.runtime.compat.requirements import ReliedOn

CONNECT_SECONDS = 10.0
MOST_CONNECTIONS = 256
"""Kept open; more are made where more calls run at once."""
MOST_CLIENTS = 16
"""One for each profile, region and set of credentials."""
RELIED_ON: ReliedOn = ((URLLib3Session, "_pool_classes_by_scheme", ()),)
_NO_CREDENTIALS = "no AWS credentials are found (set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or `bedrock.profile`)"
_MAY_BE_THE_REQUEST_FORM = "ValidationException"
"""fast-agent looks for another form of the request after this error; after others the same one would fail again."""

_clients: dict[tuple[Any, ...], Any] = {}
_making = Lock()


def client_of(profile: str | None, region: str | None) -> Client:
    """The client of a profile and region, kept: it is safe for threads, and making it reads megabytes.

    Raises:
        ProviderError: the environment holds no profile, region or credentials to make it with.
    """
    variables = sorted((name, value) for name, value in os.environ.items() if name.startswith("AWS_"))
    key = (profile, region, *variables)
    with _making:
        if key not in _clients:
            if len(_clients) >= MOST_CLIENTS:
                _clients.clear()  # keys change, old ones do not come back
            with _translated():
                _clients[key] = _new_client(profile, region)
        return Client(*_clients[key])


def _new_client(profile: str | None, region: str | None) -> tuple[Any, Any]:
    """The library's client, and the credentials that it signs requests with."""
    config = Config(
        connect_timeout=CONNECT_SECONDS,
        max_pool_connections=MOST_CONNECTIONS,
        retries={"total_max_attempts": 1},  # the gateway's own retries are bounded and logged
    )
    session = boto3.Session(profile_name=profile)
    client = session.client("bedrock-runtime", region_name=region, config=config)
    pools = client._endpoint.http_session._pool_classes_by_scheme
    for scheme, pool in list(pools.items()):
        connection = type(pool.ConnectionCls.__name__, (_Watched, pool.ConnectionCls), {})
        pools[scheme] = type(pool.__name__, (pool,), {"ConnectionCls": connection})
    return client, session.get_credentials()


class _Watched:
    """Goes before the class of a connection."""

    def request(self: Any, *arguments: Any, **options: Any) -> Any:
        if (turn := current_turn()) is not None and self.sock is not None:
            turn.takes(self.sock)  # one that other turns have used
        return super().request(*arguments, **options)  # type: ignore[misc]

    def getresponse(self: Any, *arguments: Any, **options: Any) -> Any:
        if (turn := current_turn()) is not None:
            self.timeout = turn.idle_seconds
            turn.takes(self.sock)
        response = super().getresponse(*arguments, **options)  # type: ignore[misc]
        response.stream = partial(_limited, response, response.stream)
        return response


def _limited(response: Any, stream: Callable[..., Iterator[bytes]], *arguments: Any, **options: Any) -> Iterator[bytes]:
    """The body in pieces. An error is cut off, an answer is refused, when it is longer than either can be."""
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


class Client:
    """The two operations that fast-agent calls, with errors that do not start its search for another request form."""

    def __init__(self, client: Any, credentials: Any) -> None:
        self._client = client
        self._credentials = credentials
        self._refused: list[tuple[str, dict[str, Any]]] = []
        self._refusal: Mapping[str, Any] | None = None

    @property
    def refuses_streams(self) -> bool:
        """Return True if the last refusal says that the model does not stream what it was asked for."""
        return self._refusal is not None and "stream" in self._refusal["Error"].get("Message", "").lower()

    def converse(self, **request: Any) -> Any:
        """As the library's."""
        return self._ask("converse", request)

    def converse_stream(self, **request: Any) -> Any:
        """As the library's, but a stream without its end fails."""
        response = self._ask("converse_stream", request)
        return {**response, "stream": _events(response["stream"])}

    def _ask(self, operation: str, request: dict[str, Any]) -> Any:
        if (turn := current_turn()) is not None:
            turn.check()
        requests = Requests.of_turn()
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
        except exceptions.ClientError as error:  # fast-agent looks for another form of the request
            self._refused.append((operation, deepcopy(request)))
            self._refusal = error.response
            raise

    def _hide_credentials(self) -> None:
        """They may come from a file, a login or the cloud, and expire."""
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
