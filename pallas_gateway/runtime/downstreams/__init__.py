"""Connections to an agent's MCP servers, and their cached listings."""
