"""Faults of fast-agent."""
