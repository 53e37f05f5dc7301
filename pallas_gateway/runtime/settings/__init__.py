"""fast-agent's configuration, as the gateway needs it: models, providers, addresses."""
