"""What one agent looks like over MCP: its tools, its prompt, its schemas. Both protocol eras, no state."""
