"""From an AgentSpec to a started fast-agent program."""
