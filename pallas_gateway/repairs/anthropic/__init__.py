"""Faults of fast-agent's class for Anthropic's models."""
