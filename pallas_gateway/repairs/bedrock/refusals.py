"""Bedrock refusals multiply requests.

Symptom: after a `ValidationException` a call sends up to six requests, with a schema twelve, and logs none.

Repair: a turn sends three requests at most. Each repeat is logged and has another form; one without streams only if the
refusal mentions streams. With a schema, only an answer that does not fit is asked for again.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import wraps
from typing import Any

from pallas_gateway.calls.current import current_turn
from pallas_gateway.changes.change import REPAIR, Change, Loaded, Name
from pallas_gateway.errors import ProviderError
from pallas_gateway.limits import MOST_REQUESTS
from pallas_gateway.repairs.bedrock._turns import say_repeated

_MODULE = "fast_agent.llm.provider.bedrock.llm_bedrock"
_LLM = f"{_MODULE}:BedrockLLM"
_FALLBACK = ("self", "client", "attempt", "model", "caps")
CHANGE = Change(
    "bedrock-refusals",
    REPAIR,
    ("fast-agent-mcp",),
    seen_in="0.10.48",
    when=Loaded("boto3"),
    replaces=(
        Name(f"{_LLM}._get_bedrock_runtime_client", takes=("self",), by="counting_client"),
        Name(f"{_LLM}._try_non_streaming_fallback", takes=_FALLBACK, by="unless_refused"),
        Name(f"{_LLM}._bedrock_completion", takes=("self",), by="once_for_schemas"),
    ),
    needs=("bedrock-errors",),
    gone_when="fast-agent bounds its search for another form, and repeats structured requests only over answers that "
    "do not fit",
)


class CountingClient:
    """A client that counts the requests of its turn, and refuses those that are too many."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._refused: list[tuple[str, dict[str, Any]]] = []
        self._refusal: Any = None

    @property
    def refuses_streams(self) -> bool:
        """True if the last refusal reports that the model does not support streams for the request."""
        return self._refusal is not None and "stream" in self._refusal["Error"].get("Message", "").lower()

    def converse(self, **request: Any) -> Any:
        """Call the client's method."""
        return self._ask("converse", request)

    def converse_stream(self, **request: Any) -> Any:
        """Call the client's method."""
        return self._ask("converse_stream", request)

    def _ask(self, operation: str, request: dict[str, Any]) -> Any:
        from botocore.exceptions import ClientError  # noqa: PLC0415  boto3 is optional

        from pallas_gateway.repairs.bedrock._failures import refusal_of  # noqa: PLC0415

        turn = current_turn()
        if self._refusal is not None:
            refusal = refusal_of(self._refusal)
            if turn.sent >= MOST_REQUESTS or (operation, request) in self._refused:
                raise refusal
            say_repeated(str(refusal), turn.sent)
        turn.sent += 1
        try:
            return getattr(self._client, operation)(**request)
        except ClientError as error:  # fast-agent tries another form of the request
            self._refused.append((operation, deepcopy(request)))
            self._refusal = error.response
            raise


def counting_client(original: Callable[[Any], Any], holder: Any) -> Callable[[Any], Any]:
    """Have the client count requests."""
    del holder
    return lambda self: CountingClient(original(self))


def unless_refused(original: Callable[..., Any], holder: Any) -> Callable[..., Any]:
    """Repeat a request without a stream only if streams are refused; fast-agent does so after every refusal."""
    del holder
    from fast_agent.llm.provider.bedrock.llm_bedrock import BedrockFallbackResult  # noqa: PLC0415  not before it is used

    @wraps(original)
    def without_stream(self: Any, client: Any, *arguments: Any, **options: Any) -> Any:
        if not client.refuses_streams:
            return BedrockFallbackResult()
        return original(self, client, *arguments, **options)

    return without_stream


def once_for_schemas(original: Callable[..., Any], holder: Any) -> Callable[..., Any]:
    """Raise a failure again where fast-agent repeats the request for its schema after any failure."""
    del holder

    @wraps(original)
    async def complete(self: Any, *arguments: Any, **options: Any) -> Any:
        turn = current_turn()
        if turn.failure is not None:
            raise turn.failure
        if turn.is_answered:
            why = "the answer does not fit the schema"
            if turn.sent >= MOST_REQUESTS:
                raise ProviderError(why)
            say_repeated(why, turn.sent)
        try:
            answer = await original(self, *arguments, **options)
        except Exception as error:
            turn.failure = error
            raise
        turn.is_answered = True
        return answer

    return complete
