"""Failures of boto3 as `ProviderError`, in words for the caller. Imported when an agent uses Bedrock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from botocore import exceptions
from botocore.eventstream import ParserError
from urllib3.exceptions import HTTPError, ReadTimeoutError

from pallas_gateway.calls.provider_failures import CUT_OFF, UNREACHED, incomplete, reported
from pallas_gateway.errors import ProviderError

_NO_CREDENTIALS = "no AWS credentials are found (set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or `bedrock.profile`)"
_MAY_BE_THE_REQUEST_FORM = "ValidationException"
"""The error after which fast-agent tries other forms of the request; after other errors they would fail too."""


class PlainClient:
    """A client whose failures are `ProviderError`, except those after which another form of the request may do."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def converse(self, **request: Any) -> Any:
        """Call the client's method."""
        with translated():
            return self._client.converse(**request)

    def converse_stream(self, **request: Any) -> Any:
        """Call the client's method."""
        with translated():
            response = self._client.converse_stream(**request)
        return {**response, "stream": _events(response["stream"])}


def _events(stream: Any) -> Iterator[dict[str, Any]]:
    try:
        with translated(in_stream=True):
            yield from stream
    finally:
        stream.close()


@contextmanager
def translated(*, in_stream: bool = False) -> Iterator[None]:
    """Raise failures of the library within the block as `ProviderError`, time-outs as `TimeoutError`."""
    try:
        yield
    except exceptions.ClientError as error:
        if error.response["Error"].get("Code") == _MAY_BE_THE_REQUEST_FORM and not in_stream:
            raise
        raise refusal_of(error.response) from None
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


def refusal_of(response: Mapping[str, Any]) -> ProviderError:
    """The error of a refused request."""
    error, about = response["Error"], response.get("ResponseMetadata", {})
    status, message = about.get("HTTPStatusCode"), error.get("Message") or error.get("Code")
    text = message if status else reported(message)
    return ProviderError(str(text), status=status, headers=about.get("HTTPHeaders"))
