"""One call inside fast-agent: observer, hooks, parameters, messages."""
