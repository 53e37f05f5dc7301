"""The registry from which clients discover the agents."""
