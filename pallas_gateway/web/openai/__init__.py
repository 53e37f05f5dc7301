"""The agents as models of OpenAI's chat-completions API: `/v1/models` and `/v1/chat/completions`.

Stateless: each request holds its conversation. Formats: OpenAI's API reference, as its official clients read it.
"""


def is_path(path: str) -> bool:
    """Return true if a path belongs to this API."""
    return path == "/v1" or path.startswith("/v1/")
