"""Repairs of HTTP clients."""
