"""Clients of LLM providers, and the repairs of fast-agent's provider classes."""
