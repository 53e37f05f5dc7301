"""Metrics, logs and traces. Nothing here decides anything."""
