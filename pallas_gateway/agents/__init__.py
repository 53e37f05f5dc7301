"""Hosting agents: each one's life, its answers, and how many calls it may run at once."""
