"""The versions of libraries with which the fast paths were tested, and the names of settings."""

TESTED = {
    "aiohttp": "3.14.4",
    "anthropic": "1.11.0",
    "fast-agent-mcp": "0.10.46",
    "filelock": "4.0.12",
    "google-genai": "2.28.0",
    "mcp": "2.3.0",
    "openai": "3.24.0",
    "pydantic": "2.14.0",
}
"""Those of requirements.lock; a test compares them."""
SETTINGS = ("event_loop", "garbage_collection", "kept_memory")
"""Settings of the process (`serving/process.py`), which are switched like fast paths."""
