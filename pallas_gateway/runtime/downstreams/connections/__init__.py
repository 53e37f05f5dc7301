"""Connections of calls to downstreams."""
