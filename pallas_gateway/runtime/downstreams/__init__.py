"""Connections to an agent's MCP servers, and what those offer."""
