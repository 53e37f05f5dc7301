"""A client of any gateway at the terminal: call, chat, agents, health, connect. It imports nothing of the server."""
