"""Sockets, signals, reload and the HTTP server; nothing of agents."""
