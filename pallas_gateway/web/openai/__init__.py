"""The agents as models of OpenAI's chat-completions API: `/v1/models` and `/v1/chat/completions`.

Stateless like the rest: each request brings its conversation. Formats: the API reference of OpenAI, as the official
clients read it.
"""


def is_path(path: str) -> bool:
    """Whether a path belongs to this API."""
    return path == "/v1" or path.startswith("/v1/")
