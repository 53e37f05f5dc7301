"""The runtime on fast-agent. No other package but `example/` imports `fast_agent`; they use `protocols`."""
