"""fast-agent's interface as the gateway uses it, and checks of the names that it relies on."""
