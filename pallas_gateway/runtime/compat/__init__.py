"""What is asked of fast-agent in a way of its own, and the names that the gateway relies on."""
