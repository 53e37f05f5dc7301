"""Who calls, what they may, and which tokens they hold. Knows nothing of agents, routes and fast-agent."""
