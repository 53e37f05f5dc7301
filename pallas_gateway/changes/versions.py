"""The versions of libraries with which the fast paths were tested, and the names of settings."""

TESTED = {
    "aiohttp": "3.14.5",
    "anthropic": "1.17.0",
    "fast-agent-mcp": "0.10.48",
    "filelock": "4.2.4",
    "google-genai": "2.32.0",
    "mcp": "2.3.0",
    "openai": "3.37.0",
    "pydantic": "2.14.1",
}
"""Those of requirements.lock; a test compares them."""
SETTINGS = ("event_loop", "garbage_collection", "kept_memory")
"""Settings of the process (`process/process.py`), which are switched like fast paths."""
