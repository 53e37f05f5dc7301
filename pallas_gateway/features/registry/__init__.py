"""The registry from which clients discover the agents, and the front page, which shows the same."""
