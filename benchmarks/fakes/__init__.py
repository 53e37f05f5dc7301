"""Stand-ins for what a call reaches: an LLM and MCP servers, so cheap that they do not bound what is measured."""
