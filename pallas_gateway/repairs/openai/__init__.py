"""Faults of fast-agent with the APIs of OpenAI, and of their libraries."""
