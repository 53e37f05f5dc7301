"""Repairs of the MCP SDK."""
