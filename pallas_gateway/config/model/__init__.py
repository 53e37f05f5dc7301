"""The sections of `agents.yaml` as frozen models, and the kinds of values in them."""
