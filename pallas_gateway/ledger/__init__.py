"""Limits of callers, and who was allowed what: the decisions and counts of a gateway's calls."""
