"""Pallas Gateway: every fast-agent agent of a project as an MCP server of its own, behind one port."""

__version__ = "0.1.0"
