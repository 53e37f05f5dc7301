"""The agents as models of OpenAI's API: `/v1/models`, `/v1/chat/completions` and `/v1/responses`.

Stateless: each request holds its conversation. Formats: OpenAI's API reference, as its official clients read it.
"""


def is_path(path: str) -> bool:
    """Return true if a path belongs to this API."""
    return path == "/v1" or path.startswith("/v1/")
