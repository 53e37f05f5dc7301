"""The only place that knows fast-agent (beside `example/`). The rest of the gateway sees `ports` and nothing more."""
