"""From a plan of agents.yaml to a started fast-agent program."""
