"""Callers, their grants and their tokens. Knows nothing of agents, routes and fast-agent."""
