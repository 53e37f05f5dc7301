"""What a request to OpenAI's API is known to consist of."""

from typing import Any


class PlainMessages(list[Any]):
    """The messages of a request that consists of JSON's own types."""
