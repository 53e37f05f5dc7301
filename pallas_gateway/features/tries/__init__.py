"""An agent is tried before its definition is saved: on the rights of agents as data, with the answers of threads."""
