"""The ASGI app: routes, guards, registry and probes."""
