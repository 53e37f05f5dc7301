"""The ASGI app: routes, guards, the registry and the probes. What an agent answers is decided below."""
