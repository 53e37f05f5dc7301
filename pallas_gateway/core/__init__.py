"""The gateway: all hosted agents with their MCP servers and health checks."""
