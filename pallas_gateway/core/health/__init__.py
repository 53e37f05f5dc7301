"""Is an agent well: probes of its downstreams, and the verdict over them. Never an LLM call."""
