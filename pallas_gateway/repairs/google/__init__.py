"""Faults of fast-agent's class for Google's models, and of Google's library."""
