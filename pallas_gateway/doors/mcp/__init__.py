"""Agents as MCP servers: tools, prompt and schemas, in both protocol eras and without state."""
